"""Configuration of each kernel in the course's environment: IPython reads it from etc/ipython."""

c = get_config()  # type: ignore[name-defined] # noqa: F821
c.InteractiveShellApp.extensions.append("gpu_course.restarted")
