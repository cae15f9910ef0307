"""smdebug's own PyTorch hook on a small model: weights, gradients, outputs and losses of 50 steps.

The verifying process trains the model again without the hook, so that what the trial returns is
compared with the truth and not with another file. (Large: needs torch 1.13.1.)
"""

import os
import warnings

warnings.filterwarnings("ignore")
os.environ.setdefault("SMDEBUG_LOG_LEVEL", "error")
os.environ.setdefault("AWS_DEFAULT_REGION", "us-east-1")

import torch  # noqa: E402
from smdebug.core.modes import ModeKeys  # noqa: E402
from smdebug.core.save_config import SaveConfig  # noqa: E402
from smdebug.pytorch import Hook  # noqa: E402
from smdebug.trials import create_trial  # noqa: E402

from common import check, main, same  # noqa: E402
from smdebug_client import no_leftovers, unmodified  # noqa: E402

STEPS = 50


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = torch.nn.Linear(40, 30)
        self.fc2 = torch.nn.Linear(30, 10)

    def forward(self, x):
        return self.fc2(torch.relu(self.fc1(x)))


def train(hook=None):
    """Trains, and returns what each step must have saved: [{tensor name: array}]."""
    torch.manual_seed(7)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    net, loss_module = Net(), torch.nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    if hook:
        hook.register_module(net)
        hook.register_loss(loss_module)
    saved = []
    for _ in range(STEPS):
        x, y = torch.randn(16, 40), torch.randint(0, 10, (16,))
        if hook:
            hook.set_mode(ModeKeys.TRAIN)
        step = {f"Net_{n}": p.detach().numpy().copy() for n, p in net.named_parameters()}
        optimizer.zero_grad()
        output = net(x)
        loss = loss_module(output, y)
        loss.backward()
        for name, parameter in net.named_parameters():
            step[f"gradient/Net_{name}"] = parameter.grad.numpy().copy()
        step["CrossEntropyLoss_output_0"] = loss.detach().numpy().copy()
        step["fc2_output_0"] = output.detach().numpy().copy()
        optimizer.step()
        saved.append(step)
    return saved


def write(directory):
    unmodified()
    hook = Hook(
        out_dir=os.path.join(directory, "torch"),
        save_config=SaveConfig(save_interval=1),
        save_all=True,
        export_tensorboard=True,
    )
    train(hook)
    hook.close()
    verify(directory)


def verify(directory):
    unmodified()
    no_leftovers(os.path.join(directory, "torch"))
    trial = create_trial(os.path.join(directory, "torch"))
    check(trial.steps(ModeKeys.TRAIN) == list(range(STEPS)), trial.steps(ModeKeys.TRAIN))
    for number, step in enumerate(train()):
        for name, value in step.items():
            got = trial.tensor(name).value(number, mode=ModeKeys.TRAIN)
            same(got, value, f"{name} at {number}")


if __name__ == "__main__":
    main(write, verify)
