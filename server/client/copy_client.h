// An aggregator's client of another aggregator, from which it copies the files of a version
// (Rounds.Copy). A call is one attempt, of which the caller repeats what has failed.
//
// Thread-safe.
#pragma once

#include <grpcpp/client_context.h>

#include <functional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/rpc/credentials.h"
#include "proto/cadre/v1/rounds.pb.h"

namespace cadre {

class CopyClient {
 public:
  // `patience`: the time for one attempt, within which it should at least receive a block.
  explicit CopyClient(Credentials credentials, absl::Duration patience = absl::Seconds(20))
      : credentials_(std::move(credentials)), patience_(patience) {}

  // Requests a file from the aggregator of this name, and passes the replies to `on_reply` until it
  // fails. Errors: those of `on_reply`; NotFound and DataLoss if the aggregator does not have the
  // file; Unavailable if it cannot be reached or does not answer; Cancelled after Cancel.
  absl::Status Fetch(const std::string& address, const std::string& aggregator,
                     const v1::CopyRequest& request,
                     const std::function<absl::Status(const v1::CopyReply&)>& on_reply)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // The call in progress and all later ones fail.
  void Cancel() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  const Credentials credentials_;
  const absl::Duration patience_;
  absl::Mutex mutex_;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  // The call in progress.
  grpc::ClientContext* context_ ABSL_GUARDED_BY(mutex_) = nullptr;
};

}  // namespace cadre
