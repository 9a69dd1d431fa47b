"""What is on the device, and why: slots, indexes, policies, planners and transfers."""
