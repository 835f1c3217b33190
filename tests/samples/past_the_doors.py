import course_utils.memory.budgets  # past: course_utils.memory.budgets
import simgpu
import simgpu.device.state as inside  # past: simgpu.device.state
from course_utils import devices, gpus
from gpu_course import lesson02
from gpu_course.checks.engine import Exercise  # past: gpu_course.checks.engine.Exercise
from kernelcheck import toolchain  # past: kernelcheck.toolchain
from simgpu import ledger, world  # past: simgpu.world
from simgpu.ground.storages import tensors_on  # past: simgpu.ground.storages.tensors_on

tensor = simgpu.gpus.get("T4")
print(simgpu.world().gpus, simgpu.device.enabling.clock_ms(), tensor._inner)  # past: _inner, simgpu.device, world
print(simgpu.settings()._budgets, getattr(tensor, "_inner"), ledger.Ledger(tensor)._lock)  # past: _inner, ledger.Ledger(tensor)._lock, simgpu.settings()._budgets
print(devices.choice, lesson02._secret, gpus._ROWS)  # past: course_utils.devices.choice, course_utils.gpus._ROWS, gpu_course.lesson02._secret


class Mine(simgpu.ledger.Ledger):
    def note(self, func, made_bytes):
        self._mine = self.change_bytes
        self._bury()  # past: self._bury


class Keeper:
    def __init__(self):
        self.memory = simgpu.memory("sim:0")

    def now(self):
        return self.memory._gpu  # past: self.memory._gpu


def local():
    memory = simgpu.memory()
    with simgpu.timeline() as seen:
        memory._gpu.capacity_bytes = 0  # past: memory._gpu
    return seen._kept, seen.records  # past: seen._kept


PROGRAM = "import simgpu; simgpu.ledger._bury(); simgpu.world()"  # past: simgpu.ledger._bury, simgpu.world
