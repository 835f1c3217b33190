"""What do all rooms need that is about PyTorch and text, and knows no GPU?"""
