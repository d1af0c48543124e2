// SharedMapping: zeroed memory that processes of one machine map together.
//
// It is an anonymous file (memfd): without a name, so that no abort leaves anything behind, and ordinary memory to the
// kernel, whatever the size of /dev/shm. Others find it through the /proc entry of the process that has made it, for as
// long as that keeps its descriptor open. MPI_Win_allocate_shared would do the same with files in /dev/shm, which
// containers often limit to 64 MiB and whose lack shows as a bus error at first touch.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <string>

namespace mantissa {

class SharedMapping {
 public:
  // How another process finds it, and knows that it is the right one. Plain data.
  struct Ticket {
    pid_t process = 0;
    int descriptor = -1;
    dev_t device = 0;
    ino_t inode = 0;
    size_t bytes = 0;
  };

  // Both throw CommError with the system's reason. Pages are taken as they are touched, huge ones where the system
  // grants them to shared memory (/sys/kernel/mm/transparent_hugepage/shmem_enabled).
  static SharedMapping create(size_t bytes);
  static SharedMapping open(const Ticket& ticket);

  SharedMapping() = default;
  SharedMapping(SharedMapping&& other) noexcept;
  SharedMapping& operator=(SharedMapping&& other) noexcept;
  ~SharedMapping();

  std::byte* data() const { return data_; }
  size_t bytes() const { return ticket_.bytes; }
  // Of a mapping that this process created; good until seal().
  const Ticket& ticket() const { return ticket_; }
  // Nobody else can open it from now on. Those who have it keep it, also beyond the end of this process.
  void seal();

 private:
  void map(int descriptor);

  std::byte* data_ = nullptr;
  Ticket ticket_;
};

// Whether the system gives shared memory huge pages (MADV_HUGEPAGE), as it gives them to private memory.
bool shared_memory_has_huge_pages();

}  // namespace mantissa
