"""What people have, read: requests and the logs of their trainings."""
