// A team of threads that compute a call together: each runs the same function, and they meet at barriers.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>

#include <unistd.h>

namespace flowedge {

struct Range {
    int64_t start, stop;
};

constexpr int SPINS = 4096;  // tries before a thread that waits leaves its core to others

inline void pause_briefly() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#else
    asm volatile("yield");
#endif
}

class Barrier {
  public:
    void wait(int members) {
        const int round = round_.load(std::memory_order_acquire);
        if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == members) {
            arrived_.store(0, std::memory_order_relaxed);
            round_.store(round + 1, std::memory_order_release);
            return;
        }
        for (int tries = 0; round_.load(std::memory_order_acquire) == round; tries++) {
            if (tries < SPINS)
                pause_briefly();
            else
                std::this_thread::yield();  // another process has the core of a thread that is waited for
        }
    }

  private:
    std::atomic<int> arrived_{0}, round_{0};
};

// One thread's place in its team.
struct Team {
    int member, members;
    Barrier* barrier;

    void meet() const {
        if (members > 1) barrier->wait(members);
    }

    // This member's share of `count` units.
    Range share(int64_t count) const { return {count * member / members, count * (member + 1) / members}; }
};

using Work = std::function<void(const Team&)>;

// Threads that wait for work. A call finds them busy when another thread's call has them, and is computed alone then.
class Pool {
  public:
    static Pool& shared() {
        static Pool* pool = new Pool;  // never deleted: its threads run until the process ends
        return *pool;
    }

    void run(int members, const Work& work) {
        std::unique_lock<std::mutex> lock(busy_, std::try_to_lock);
        if (members <= 1 || !lock.owns_lock()) {
            work(Team{0, 1, nullptr});
            return;
        }
        if (process_ != getpid()) {  // a process that was forked has none of its parent's threads
            process_ = getpid();
            threads_ = 0;
        }
        while (threads_ < members - 1) {
            const int member = ++threads_, seen = call_.load(std::memory_order_relaxed);
            std::thread([this, member, seen] { serve(member, seen); }).detach();
        }
        work_ = &work;
        members_.store(members, std::memory_order_relaxed);
        done_.store(0, std::memory_order_relaxed);
        call_.fetch_add(1, std::memory_order_release);
        call_.notify_all();
        work(Team{0, members, &barrier_});
        for (int tries = 0; done_.load(std::memory_order_acquire) < threads_; tries++)
            if (tries < SPINS)
                pause_briefly();
            else
                std::this_thread::yield();
    }

  private:
    // Takes part in every call after the call number `seen`.
    void serve(int member, int seen) {
        for (;;) {
            for (int tries = 0; tries < SPINS && call_.load(std::memory_order_acquire) == seen; tries++) pause_briefly();
            call_.wait(seen, std::memory_order_acquire);
            seen = call_.load(std::memory_order_acquire);
            const int members = members_.load(std::memory_order_relaxed);
            if (member < members) (*work_)(Team{member, members, &barrier_});
            done_.fetch_add(1, std::memory_order_release);
        }
    }

    std::mutex busy_;
    int threads_ = 0;  // beside the calling thread
    pid_t process_ = 0;
    const Work* work_ = nullptr;
    std::atomic<int> members_{0}, done_{0}, call_{0};
    Barrier barrier_;
};

}  // namespace flowedge
