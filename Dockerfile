# JupyterLab with the course, on the CPU and the simulated GPU:
#   docker build -t gpu-course .
#   docker run --rm -p 127.0.0.1:8888:8888 -v gpu-course:/home/reader/course/workbook gpu-course
FROM python:3.11-slim
RUN apt-get update && apt-get install -y --no-install-recommends g++ make git && rm -rf /var/lib/apt/lists/*
RUN useradd --create-home reader
USER reader
WORKDIR /home/reader/course
COPY --chown=reader . .
# PyTorch's own index has the build without CUDA, a tenth of the size.
RUN python -m venv .venv \
 && .venv/bin/pip install --no-cache-dir torch==$(sed -n 's/^torch==//p' constraints.txt) --index-url https://download.pytorch.org/whl/cpu \
 && .venv/bin/pip install --no-cache-dir -e ".[lab]" -c constraints.txt \
 && mkdir workbook
ENV COURSE_DEVICE=sim
EXPOSE 8888
CMD [".venv/bin/python", "tools/workbook.py", "--no-browser", "--ip=0.0.0.0"]
