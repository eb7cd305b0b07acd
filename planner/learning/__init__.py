"""What runs teach: the sites of users, and the accuracy of the cost model."""
