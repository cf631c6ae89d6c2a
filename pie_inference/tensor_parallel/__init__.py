"""One model on several devices of a machine: a worker that is a group of processes.

Theory. Each process is a rank: it holds its share of the weights and of every page, runs every wave, and meets the
others in collective operations (`collectives`: NCCL between GPUs, gloo between CPU processes). Rank 0, the leader,
speaks to the control process. It starts the others, the followers, and hands them each wave before it runs the wave
itself (`group`). A follower does nothing else than run waves (`serving.follower`).

Waves travel over a socket pair for each follower (`channel`): 41 us there and back for 2 KB, against 105 us over ZeroMQ
and 512 us for gloo's broadcast. It also ends with either process.

On CPUs this is for tests and for models that one process cannot hold, not for speed: a small sum through gloo measured
0.4 to 1 ms, so the demo model took 18 ms for a token on 2 ranks, and 1.4 ms on one.

What ranks compute from is equal on all of them: sums and gathered logits are the same bytes, and sampled tokens are
the leader's. So a command that breaks the protocol fails on all ranks alike, in the same place. Whatever fails on some
ranks only (memory that runs out on one device) leaves others waiting in an operation that will never end, so ranks
meet at each failure before they go on (`agreement`), and a group that disagrees ends. A group also ends with any of its
processes; the control layer then starts a new one.
"""
