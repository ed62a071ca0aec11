"""What a session has cached: keys and values, who sees whom in the draft tail, and how attention reads."""
