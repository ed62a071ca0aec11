"""The planner beside other ways to lay a model out, over random fleets on the virtual clock."""
