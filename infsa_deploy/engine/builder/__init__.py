"""What turns a parsed network into a plan, in a process of its own."""
