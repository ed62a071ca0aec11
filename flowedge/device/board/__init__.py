"""What a board says of itself: kind, clocks, temperatures, power, and what slows it down."""
