// Host threads that help with the threadgroups of one launch.
#include "host.h"
#include <condition_variable>
#include <mutex>
#include <thread>

namespace ly {
struct Pool {
  std::mutex lock;
  std::condition_variable wake, idle;
  Job *job = nullptr;
  unsigned round = 0;  // counts jobs, so that a thread sees a new one
  unsigned busy = 0;
  bool stop = false;
  std::vector<std::thread> threads;

  explicit Pool(unsigned helpers) {
    for (unsigned i = 0; i < helpers; ++i) threads.emplace_back([this] { serve(); });
  }
  ~Pool() {
    {
      std::lock_guard<std::mutex> held(lock);
      stop = true;
    }
    wake.notify_all();
    for (std::thread &thread : threads) thread.join();
  }
  void serve() {
    for (unsigned seen = 0;;) {
      Job *mine;
      {
        std::unique_lock<std::mutex> held(lock);
        wake.wait(held, [&] { return stop || round != seen; });
        if (stop) return;
        seen = round;
        mine = job;
      }
      work(*mine);
      std::lock_guard<std::mutex> held(lock);
      if (--busy == 0) idle.notify_one();
    }
  }
};

void run_on_pool(Device &device, Job &job) {
  if (!device.pool) device.pool = new Pool(device.options.threads - 1);
  Pool &pool = *device.pool;
  {
    std::lock_guard<std::mutex> held(pool.lock);
    pool.job = &job;
    ++pool.round;
    pool.busy = unsigned(pool.threads.size());
  }
  pool.wake.notify_all();
  work(job);
  std::unique_lock<std::mutex> held(pool.lock);
  pool.idle.wait(held, [&] { return pool.busy == 0; });
}

void close_pool(Device &device) {
  delete device.pool;
  device.pool = nullptr;
}
}  // namespace ly
