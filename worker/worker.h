// A worker: a member of the cluster (member/group_member.h) that trains with a compute device of
// its own.
//
// Thread-safe.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "base/rooted_files.h"
#include "member/group_member.h"
#include "worker/compute.h"

namespace cadre {

// StartWorker sets make_trainer.
struct WorkerOptions : GroupMember::Options {
  // Files that a run may name in `data` and in `checkpoint`.
  RootedFiles data_files = RootedFiles::Unrestricted();
  RootedFiles checkpoint_files = RootedFiles::Unrestricted();
  // Creates the device to compute on, at the start and after it has failed.
  std::function<absl::StatusOr<std::unique_ptr<Compute>>()> make_compute;
  // Threads that read and decode samples, at least 1.
  int loader_threads = 1;
};

// As GroupMember::Start; also the errors of make_compute.
absl::StatusOr<std::unique_ptr<GroupMember>> StartWorker(WorkerOptions options);

}  // namespace cadre
