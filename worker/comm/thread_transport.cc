#include "worker/comm/thread_transport.h"

#include <glog/logging.h>

#include <cstring>
#include <deque>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"

namespace cadre {
namespace {

// Messages that a mailbox holds before its sender waits.
constexpr size_t kMailboxMessages = 4;

struct Message {
  uint64_t tag = 0;
  std::vector<std::byte> payload;
};

// What the ranks share.
struct Hub {
  explicit Hub(int ranks)
      : ranks(ranks),
        mailboxes(static_cast<size_t>(ranks) * static_cast<size_t>(ranks)),
        errors(static_cast<size_t>(ranks)),
        left(static_cast<size_t>(ranks)) {}

  std::deque<Message>& Mailbox(int from, int to) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    return mailboxes[static_cast<size_t>(from) * static_cast<size_t>(ranks) +
                     static_cast<size_t>(to)];
  }
  absl::Status& Error(int rank) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    return errors[static_cast<size_t>(rank)];
  }
  // `rank` fails with `error`, and all others lose it. Returns the rank's first error.
  absl::Status Fail(int rank, const absl::Status& error) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);

  const int ranks;
  absl::Mutex mutex;
  std::vector<std::deque<Message>> mailboxes ABSL_GUARDED_BY(mutex);
  // First error of each rank.
  std::vector<absl::Status> errors ABSL_GUARDED_BY(mutex);
  // Ranks whose transport ended without an error.
  std::vector<bool> left ABSL_GUARDED_BY(mutex);
};

absl::Status Hub::Fail(int rank, const absl::Status& error) {
  if (!Error(rank).ok()) return Error(rank);
  Error(rank) = error;
  for (int other = 0; other < ranks; ++other) {
    if (Error(other).ok()) {
      Error(other) =
          absl::UnavailableError(absl::StrCat("rank ", rank, " is lost: it closed the connection"));
    }
  }
  return error;
}

class ThreadTransport final : public Transport {
 public:
  // The hub is shared by the transports of the group and goes with the last of them.
  ThreadTransport(std::shared_ptr<Hub> hub, int rank, absl::Duration timeout)
      : hub_(std::move(hub)), rank_(rank), timeout_(timeout) {}
  ~ThreadTransport() override;

  int rank() const override { return rank_; }
  int size() const override { return hub_->ranks; }

  absl::Status Send(int to, uint64_t tag, std::span<const std::byte> data) override {
    return Run(to, data, -1, {}, tag);
  }
  absl::Status Receive(int from, uint64_t tag, std::span<std::byte> data) override {
    return Run(-1, {}, from, data, tag);
  }
  absl::Status Exchange(int to, std::span<const std::byte> send, int from,
                        std::span<std::byte> receive, uint64_t tag) override {
    return Run(to, send, from, receive, tag);
  }

  void Abort(absl::Status reason) override;
  absl::Status status() const override;

 private:
  bool IsPeer(int rank) const { return rank >= 0 && rank < size() && rank != rank_; }
  // Sends and receives; a rank of -1 means nothing that way.
  absl::Status Run(int to, std::span<const std::byte> send, int from, std::span<std::byte> receive,
                   uint64_t tag);
  absl::Status Check(const Message& message, int from, size_t length, uint64_t tag) const;

  const std::shared_ptr<Hub> hub_;
  const int rank_;
  const absl::Duration timeout_;
};

ThreadTransport::~ThreadTransport() {
  absl::MutexLock lock(&hub_->mutex);
  hub_->left[static_cast<size_t>(rank_)] = true;
}

void ThreadTransport::Abort(absl::Status reason) {
  CHECK(!reason.ok());
  absl::MutexLock lock(&hub_->mutex);
  hub_->Fail(rank_, reason).IgnoreError();
}

absl::Status ThreadTransport::status() const {
  absl::MutexLock lock(&hub_->mutex);
  return hub_->Error(rank_);
}

absl::Status ThreadTransport::Run(int to, std::span<const std::byte> send, int from,
                                  std::span<std::byte> receive, uint64_t tag) {
  CHECK(to == -1 || IsPeer(to)) << to;
  CHECK(from == -1 || IsPeer(from)) << from;
  Message out{.tag = tag, .payload = {send.begin(), send.end()}};
  bool sending = to >= 0;
  bool receiving = from >= 0;
  Hub& hub = *hub_;
  absl::MutexLock lock(&hub.mutex);
  const auto room = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(hub.mutex) {
    return sending && hub.Mailbox(rank_, to).size() < kMailboxMessages;
  };
  const auto arrived = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(hub.mutex) {
    return receiving && !hub.Mailbox(from, rank_).empty();
  };
  const auto alone = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(hub.mutex) {
    return (sending && hub.left[static_cast<size_t>(to)]) ||
           (receiving && hub.left[static_cast<size_t>(from)] && !arrived());
  };
  const auto ready = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(hub.mutex) {
    return !hub.Error(rank_).ok() || room() || arrived() || alone();
  };
  while (sending || receiving) {
    const bool woken = hub.mutex.AwaitWithTimeout(absl::Condition(&ready), timeout_);
    if (!hub.Error(rank_).ok()) return hub.Error(rank_);
    if (!woken) {
      return hub.Fail(
          rank_, absl::DeadlineExceededError(absl::StrCat("rank ", rank_, " made no progress for ",
                                                          absl::FormatDuration(timeout_),
                                                          " with rank ", receiving ? from : to)));
    }
    if (alone()) {
      const bool to_left = sending && hub.left[static_cast<size_t>(to)];
      return hub.Fail(rank_, absl::UnavailableError(absl::StrCat("rank ", to_left ? to : from,
                                                                 " has left the group")));
    }
    if (room()) {
      hub.Mailbox(rank_, to).push_back(std::move(out));
      sending = false;
    }
    if (arrived()) {
      const Message in = std::move(hub.Mailbox(from, rank_).front());
      hub.Mailbox(from, rank_).pop_front();
      const absl::Status fits = Check(in, from, receive.size(), tag);
      if (!fits.ok()) return hub.Fail(rank_, fits);
      if (!receive.empty()) std::memcpy(receive.data(), in.payload.data(), receive.size());
      receiving = false;
    }
  }
  return absl::OkStatus();
}

absl::Status ThreadTransport::Check(const Message& message, int from, size_t length,
                                    uint64_t tag) const {
  if (message.tag != tag) {
    return absl::InternalError(absl::StrFormat("rank %d sent tag %016x where rank %d expects %016x",
                                               from, message.tag, rank_, tag));
  }
  if (message.payload.size() != length) {
    return absl::InternalError(
        absl::StrFormat("rank %d sent %d bytes where rank %d expects %d (tag %016x)", from,
                        message.payload.size(), rank_, length, tag));
  }
  return absl::OkStatus();
}

}  // namespace

std::vector<std::unique_ptr<Transport>> MakeThreadTransports(int ranks, absl::Duration timeout) {
  CHECK_GE(ranks, 1);
  auto hub = std::make_shared<Hub>(ranks);
  std::vector<std::unique_ptr<Transport>> transports;
  for (int rank = 0; rank < ranks; ++rank) {
    transports.push_back(std::make_unique<ThreadTransport>(hub, rank, timeout));
  }
  return transports;
}

}  // namespace cadre
