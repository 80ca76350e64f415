"""What is: operations, clocks, the stopping rule, the sweep."""
