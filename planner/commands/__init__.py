"""What the commands of the command line share, and the smaller commands."""
