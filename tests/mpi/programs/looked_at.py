"""Train with torch while a thread looks at the stack all the time, for so many seconds."""

import sys
import threading
import time

import torch

from paceline.models.mnist import MNISTNetwork
from paceline.runtime.watchdog.stack import read_activity

sys.setswitchinterval(1e-5)
torch.set_num_threads(1)
looks, stopped = 0, False


def look() -> None:
    global looks
    while not stopped:
        read_activity(main)
        looks += 1
        time.sleep(0.0002)


main = threading.get_ident()
watcher = threading.Thread(target=look)
watcher.start()
model = MNISTNetwork()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
images, labels = torch.rand(4, 1, 28, 28), torch.zeros(4, dtype=torch.long)
end = time.monotonic() + float(sys.argv[1])
while time.monotonic() < end and watcher.is_alive():
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(images), labels).backward()
    optimizer.step()
alive, stopped = watcher.is_alive(), True
watcher.join()
assert alive, "looking failed"
print(f"looked {looks} times")
