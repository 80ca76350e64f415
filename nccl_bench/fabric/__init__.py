"""What could be: topology, readers, ceilings."""
