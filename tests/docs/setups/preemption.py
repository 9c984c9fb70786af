import os
import signal
import sys

import smdp

smdp.init()
start, steps, batch, saved = 0, 10, None, []


def train_step(batch):
    if step == 3:
        os.kill(os.getpid(), signal.SIGUSR1)


def save():
    saved.append(step)


def code_of(number):
    try:
        run(number)
    except SystemExit as leaving:
        return leaving.code
    return None


run(4)
assert [code_of(0), code_of(1)] == [75, 75]
assert saved == [3, 3]
