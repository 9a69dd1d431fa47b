"""What is on the device, and why: index, policies, planner, mover, and the group of rows that ties them to a store."""
