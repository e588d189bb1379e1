import time

from ding.framework import task
from measuring import settings, tell

count, steps = settings()["count"], 2_000
samples = []
for _ in range(7):
    with task.start():
        for _ in range(count):
            task.use(lambda ctx: None)
        began = time.process_time()
        task.run(max_step=steps)
        samples.append((time.process_time() - began) / steps / count)
tell("DI-engine", cost=sorted(samples)[3] * 1e6)
