"""What can this GPU do, what can its links, and what does an operator ask of them?"""
