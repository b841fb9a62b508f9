"""What Flink's scripts measure latency and CPU with: a feed at an even rate, and CPU seconds of all processes."""
import glob
import os
import random
import socket
import threading
import time

from pyflink.datastream import DataStream


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


def socket_table(env, t_env, a):
    """Makes the table src: key, value, and the time at which the record was due.

    The datagen table sends each second's rows in one burst; lines over a local socket come evenly.
    """
    server = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=feed, args=(server, a.rate, a.keys, a.feed_ms), daemon=True).start()
    lines = DataStream(env._j_stream_execution_environment.socketTextStream("127.0.0.1", server.getsockname()[1]))
    t_env.create_temporary_view("src", t_env.sql_query(
        "SELECT CAST(SPLIT_INDEX(f0, ',', 0) AS BIGINT) AS k, CAST(SPLIT_INDEX(f0, ',', 1) AS BIGINT) AS v, "
        f"CAST(SPLIT_INDEX(f0, ',', 2) AS DOUBLE) AS t FROM {t_env.from_data_stream(lines)}"))


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
