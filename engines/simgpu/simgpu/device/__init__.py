"""What is the device type `sim` to PyTorch, and to a program that uses it?"""
