"""CUDA's face: how does a program that says `cuda` run unchanged on a simulated GPU?"""
