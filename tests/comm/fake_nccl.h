// NCCL as a stand-in on the emulated GPU: its ranks are threads of one process. It behaves as a non-blocking
// communicator does: an operation is in progress until all ranks have called it, and is then queued on the streams of
// all; calling another one before that is an error. Operations may be captured, by all ranks or by none: then they meet
// each time that the graphs run, and the communicator cannot end before the graphs are gone. Tests choose what goes
// wrong, and count what was called.
#pragma once

#include <string>
#include <vector>

#include "comm/nccl/nccl_connection.h"

namespace mantissa::testing {

enum class FakeStart : uint8_t { kWorks, kNeverEnds, kFails };

struct FakeNcclPlan {
  int version = 22809;
  int polls = 3;  // how often a state that is about to change is still said to be in progress
  FakeStart start = FakeStart::kWorks;
  ncclResult_t id_result = ncclSuccess;
  int failing_send = -1;                      // the n-th ncclSend says ncclInvalidArgument
  bool operations_end = true;                 // else streams are held until the communicator is aborted
  bool aborts_return = true;                  // else not before let_fake_nccl_aborts_return()
  int failing_register = -1;                  // the n-th ncclCommRegister says ncclSystemError
  ncclResult_t destroy_result = ncclSuccess;  // what ncclCommDestroy says after it has freed the communicator
};

// What was called, over all ranks.
struct FakeNcclCall {
  std::string name;
  size_t count;
  ncclDataType_t type;
};
struct FakeNcclCounts {
  int started = 0, finalized = 0, destroyed = 0, aborted = 0;
  int group_depth = 0;
  int registered = 0, deregistered = 0;  // buffers at present, and those let go
  int misuses = 0;                       // calls that NCCL would refuse, or that name what it has freed
};

// Whether any communicator has this buffer registered.
bool fake_nccl_has_registered(const void* buffer);

enum class FakeAllToAll : uint8_t { kOffered, kMissing };

// The table. Forgets everything that was before.
NcclApi make_fake_nccl(const FakeNcclPlan& plan, FakeAllToAll all_to_all = FakeAllToAll::kOffered);
FakeNcclCounts fake_nccl_counts();
std::vector<FakeNcclCall> fake_nccl_calls();
// From now on all communicators report this.
void set_fake_nccl_error(ncclResult_t error);
void let_fake_nccl_aborts_return();

}  // namespace mantissa::testing
