"""The first process of the namespaces: boots the hosts, runs the proof, and ends everything. See enclosure.py."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from testbed.nspawn.boards import Boards
from testbed.nspawn.enclosure import end_everything, end_with_parent


def main():
    directory, group, checkout, wheels = sys.argv[1:5]
    directory = Path(directory)
    end_with_parent(directory, group)
    t=time.time()
    def tick(s):
        nonlocal t
        print(f"{time.time()-t:.1f} {s}", flush=True); t=time.time()
    try:
        b = Boards(directory, group, Path(checkout), Path(wheels))
        b.prepare(); tick("prepare")
        def inst(h):
            tick("booted")
            print(h.run(["/srv/flowedge/device_agents/install.sh","--offline","/srv/wheels","--no-start"]).stdout)
            tick("installed")
        b.make_image(inst); tick("off")
        b.boot(3); tick("boot 3")
        for h in b.hosts:
            print(h.run(["/srv/flowedge/device_agents/install.sh","--offline","/srv/wheels","--no-start"]).stdout)
            d="/etc/systemd/system/flowedge-agent.service.d"
            h.run(["mkdir","-p",d]); h.run(["sh","-c",f"printf '[Service]\\nType=exec\\nWatchdogSec=0\\nExecStart=\\nExecStart=/opt/flowedge/bin/flowedge agent --host 0.0.0.0 --port 7070\\n' > {d}/x.conf; systemctl daemon-reload; systemctl enable --now flowedge-agent"])
        tick("install again, start")
        h=b.hosts[0]
        time.sleep(5)
        print(h.run(["ip","-br","a"]).stdout)
        print(h.run(["systemctl","status","--no-pager","flowedge-agent"],check=False).stdout)
        print(h.run(["flowedge","devices"]).stdout); tick("devices")
        print(h.run(["journalctl","--no-pager","-u","flowedge-agent","-n","20"]).stdout)
        if len(sys.argv)>5: exec(Path(sys.argv[5]).read_text())
    finally:
        end_everything(directory, group)
main()
