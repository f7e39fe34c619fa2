"""What a data set and its labels are like, before anything is trained on them."""
