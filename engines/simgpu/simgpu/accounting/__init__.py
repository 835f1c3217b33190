"""Whose are the bytes on a device, and do more of them fit?"""
