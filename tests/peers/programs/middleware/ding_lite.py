from measuring import cost_of, settings, tell

from ding_lite import Task

count, steps = settings()["count"], 10_000
with Task() as task:
    for _ in range(count):
        task.use(lambda ctx: None)
    cost = cost_of(lambda: task.run(max_step=steps), number=3) / steps / count
tell("ding_lite", cost=cost * 1e6)
