"""`python -m simgpu program.py` runs a program that says `cuda` on simulated GPUs."""

from simgpu.face.programs import main

if __name__ == "__main__":
    main()
