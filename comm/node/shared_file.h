// SharedFile: zeroed memory that processes of one machine map together, each where it has addresses for it.
//
// It is an anonymous file (memfd): without a name, so that no abort leaves anything behind, and ordinary memory to the
// kernel, whatever the size of /dev/shm. Others find it through the /proc entry of the process that has made it, for as
// long as that keeps its descriptor open. MPI_Win_allocate_shared would do the same with files in /dev/shm, which
// containers often limit to 64 MiB and whose lack shows as a bus error at first touch.
#pragma once

#include <sys/types.h>

#include <cstddef>

namespace mantissa {

class SharedFile {
 public:
  // How another process finds it, and knows that it is the right one. Plain data.
  struct Ticket {
    pid_t process = 0;
    int descriptor = -1;
    dev_t device = 0;
    ino_t inode = 0;
    size_t bytes = 0;
  };

  // Makes one and maps it. `at`: of an AddressRange with room for `bytes` there, which unmaps it in the end; a boundary
  // of pages. CommError with the system's reason. Pages are taken as they are touched, huge ones where the system
  // grants them to shared memory (/sys/kernel/mm/transparent_hugepage/shmem_enabled) and `at` is a boundary of them.
  SharedFile(size_t bytes, std::byte* at);
  // Nobody else can open it from now on. Those who have mapped it keep it, also beyond the end of this process.
  ~SharedFile();
  SharedFile(const SharedFile&) = delete;
  SharedFile& operator=(const SharedFile&) = delete;

  const Ticket& ticket() const { return ticket_; }

 private:
  Ticket ticket_;
};

// Maps another process's file, as its constructor does.
void map_shared_file(const SharedFile::Ticket& ticket, std::byte* at);

}  // namespace mantissa
