// Working memory of a thread.
#pragma once

#include <cstdint>
#include <cstdlib>

// Memory of one thread, which grows and is kept. It constructs no objects.
class Memory {
  public:
    ~Memory() { std::free(bytes_); }

    // Takes back all pieces, and makes room for `size` bytes.
    void reset(int64_t size) {
        used_ = 0;
        if (size <= size_) return;
        std::free(bytes_);
        size_ = (size + 4095) / 4096 * 4096;
        bytes_ = (char*)std::aligned_alloc(4096, size_);
    }

    // Of `count` objects, as `take` takes them.
    template <class T>
    static int64_t bytes_of(int64_t count) {
        return (count * (int64_t)sizeof(T) + 63) / 64 * 64;
    }

    template <class T>
    T* take(int64_t count) {
        T* taken = (T*)(bytes_ + used_);
        used_ += bytes_of<T>(count);
        return taken;
    }

  private:
    char* bytes_ = nullptr;
    int64_t size_ = 0, used_ = 0;
};
