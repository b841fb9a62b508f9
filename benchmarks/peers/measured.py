"""What Flink's scripts measure latency and CPU with: a feed at an even rate, and CPU seconds of all processes."""
import glob
import os
import random
import socket
import time


def feed(server, rate, keys, feed_ms):
    """Writes rate lines a second, each with the time (s) at which it was due.

    Below 1000 a second every line leaves when it is due, otherwise in bursts, one every
    feed_ms: the wait for the burst is part of a record's latency.
    """
    connection, _ = server.accept()
    # single lines must not wait for the receiver to acknowledge the one before
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    r = random.Random(3)
    sent, begin = 0, time.time()
    try:
        while True:
            due = int((time.time() - begin) * rate) + 1
            if due > sent:
                connection.sendall("".join(
                    f"{r.randrange(keys)},1,{begin + n / rate:.6f}\n" for n in range(sent, due)).encode())
                sent = due
            time.sleep(max(0, begin + sent / rate - time.time()) if rate < 1000 else feed_ms / 1000)
    except OSError:
        connection.close()


def cpu_seconds():
    """CPU seconds so far of this process and of all below it, by process id."""
    used, children = {}, {}
    for path in glob.glob("/proc/[0-9]*/stat"):
        try:
            with open(path) as f:
                stat = f.read()
        except OSError:  # it has ended meanwhile
            continue
        fields = stat[stat.rindex(")") + 2:].split()  # a name may hold blanks: what is behind it
        pid = int(stat.split(" ", 1)[0])
        children.setdefault(int(fields[1]), []).append(pid)
        used[pid] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    found, ahead = {}, [os.getpid()]
    while ahead:
        pid = ahead.pop()
        found[pid] = used[pid]
        ahead += children.get(pid, [])
    return found
