"""What did a program do on the simulated GPU, which of its lines cost time and memory, and what would help?"""
