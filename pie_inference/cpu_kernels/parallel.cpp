#include "parallel.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

namespace {

using Clock = std::chrono::steady_clock;

const auto SPIN = std::chrono::microseconds(50);
const int64_t MOST_THREADS = 256;
const uint32_t NO_JOB = 0xffffffff;

void pause() {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// Waits, first by looking again and again, then asleep.
class Waiting {
  public:
    template <class Done>
    void until(const Done& done) {
        for (auto end = Clock::now() + SPIN; Clock::now() < end;)
            for (int i = 0; i < 32; i++, pause())
                if (done()) return;
        std::unique_lock lock(mutex_);
        sleepers_++;
        wake_.wait(lock, done);
        sleepers_--;
    }

    // To be called after what `done` looks at has changed.
    void notify() {
        if (!sleepers_) return;
        std::lock_guard lock(mutex_);
        wake_.notify_all();
    }

  private:
    std::mutex mutex_;
    std::condition_variable wake_;
    std::atomic<int> sleepers_{0};
};

// A participant's chunks. It takes them in their order, so that it reads memory as one stream; who is done with its own
// takes from the others. `next_` has the job's number as well, so that a late thread takes nothing of another job.
class alignas(64) Share {
  public:
    void open(uint32_t job, Range chunks) {
        end_ = chunks.end;
        next_ = uint64_t(job) << 32 | uint64_t(chunks.begin);
    }

    void close() { next_ = uint64_t(NO_JOB) << 32; }

    // The next chunk, or -1.
    int64_t take(uint32_t job) {
        uint64_t next = next_;
        while (next >> 32 == job && int64_t(next & 0xffffffff) < end_)
            if (next_.compare_exchange_weak(next, next + 1)) return int64_t(next & 0xffffffff);
        return -1;
    }

  private:
    std::atomic<uint64_t> next_{uint64_t(NO_JOB) << 32};
    std::atomic<int64_t> end_{0};
};

class Pool {
  public:
    void run(int64_t threads, int64_t count, void (*run)(void*, int64_t), void* data) {
        std::unique_lock only(caller_, std::try_to_lock);
        if (!only) {
            for (int64_t chunk = 0; chunk < count; chunk++) run(data, chunk);
            return;
        }
        start_threads(threads);
        begin(std::min({threads, count, MOST_THREADS}), count, run, data);
        take_part(job_, 0);
        done_.until([this] { return left_ == 0; });
        for (int64_t n = 0; n < parts_; n++) shares_[n].close();
    }

  private:
    void start_threads(int64_t threads) {
        for (; num_threads_ < std::min(threads, MOST_THREADS); num_threads_++)
            std::thread(&Pool::serve, this, num_threads_).detach();
    }

    void begin(int64_t parts, int64_t count, void (*run)(void*, int64_t), void* data) {
        uint32_t job = (job_ + 1) % NO_JOB;
        run_ = run;
        data_ = data;
        parts_ = parts;
        left_ = count;
        for (int64_t n = 0; n < parts; n++) shares_[n].open(job, share(count, n, parts));
        job_ = job;
        begun_.notify();
    }

    // Whoever holds a chunk of a job keeps the job from ending, so what belongs to the job may be read.
    void take_part(uint32_t job, int64_t own) {
        const int64_t parts = parts_;
        for (int64_t n = 0; n < parts; n++)
            for (int64_t chunk; (chunk = shares_[(own + n) % parts].take(job)) >= 0;) {
                run_.load()(data_, chunk);
                if (--left_ == 0) done_.notify();
            }
    }

    void serve(int64_t own) {
        for (uint32_t seen = 0;;) {
            begun_.until([&] { return job_ != seen; });
            seen = job_;
            if (own < parts_) take_part(seen, own);
        }
    }

    std::mutex caller_;
    Waiting begun_, done_;
    std::atomic<uint32_t> job_{0};
    std::atomic<void (*)(void*, int64_t)> run_{nullptr};
    std::atomic<void*> data_{nullptr};
    std::atomic<int64_t> parts_{1}, left_{0};
    int64_t num_threads_ = 1;  // with the caller
    Share shares_[MOST_THREADS];
};

}  // namespace

void run_chunks(int64_t threads, int64_t count, void (*run)(void* data, int64_t chunk), void* data) {
    static Pool* pool = new Pool;  // never destroyed: its threads may outlive the library's other objects
    pool->run(threads, count, run, data);
}
