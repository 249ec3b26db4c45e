#include "server/copies/copy_execution.h"

#include <glog/logging.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "model/shard_copies.h"
#include "server/run_terms.h"
#include "server/version_files.h"

namespace cadre {
namespace {

using Target = CopyFiles::Target;

// What an order requires.
struct Task {
  Target target = Target::kCopy;
  // Whether the version is stored already.
  bool stored = false;
  Interval span;
};

v1::MemberMessage CopiedAnswer(const v1::CopyShard& order) {
  v1::MemberMessage message;
  message.mutable_shard_copied()->set_run(order.run());
  v1::ShardCopy& copy = *message.mutable_shard_copied()->mutable_copy();
  copy.set_shard(order.shard());
  copy.set_version(order.version());
  copy.set_digest(order.digest());
  return message;
}

v1::MemberMessage RestoredAnswer(const v1::CopyShard& order, const absl::Status& status) {
  v1::MemberMessage message;
  v1::Applied& applied = *message.mutable_applied();
  applied.set_run(order.run());
  applied.set_shard(order.shard());
  applied.set_round(order.version());
  applied.set_from_copy(true);
  if (status.ok()) applied.set_digest(order.digest());
  applied.set_error(std::string(status.message()));
  return message;
}

// The order for the run, if it is open with the lineage of the order.
std::optional<v1::OpenRun> OpenOf(const ShardHost& host, const v1::CopyShard& order) {
  const v1::RunReport report = host.ReportRun(order.run());
  const bool is_open =
      report.has_open() && !report.closed() && report.open().lineage() == order.lineage();
  return is_open ? std::optional(report.open()) : std::nullopt;
}

// Nothing if the run is not open. Errors: InvalidArgument for a shard of which this aggregator
// holds no copy.
absl::StatusOr<std::optional<Task>> Begin(ShardHost& host, const v1::CopyShard& order) {
  const RunTurns::Turn turn = host.BeginTurn(order.run());
  // Files of a removed folder must not be created again beside those that are missing.
  CADRE_RETURN_IF_ERROR(host.CheckFiles());
  std::optional<v1::OpenRun> open = OpenOf(host, order);
  if (!open.has_value()) return std::nullopt;
  Task task;
  if (order.shard() == open->shard()) {
    task.target = Target::kShard;
    const v1::ShardState state = host.ReportRun(order.run()).state();
    task.stored = state.version() == order.version() && state.digest() == order.digest();
  } else if (HasCopies(open->spec().averaging(), open->shards()) &&
             order.shard() == CopiedShard(open->shard(), open->shards())) {
    const std::map<uint32_t, uint64_t> held = host.copies().Find(order.run(), order.shard());
    const auto version = held.find(order.version());
    task.stored = version != held.end() && version->second == order.digest();
    if (!task.stored) CADRE_RETURN_IF_ERROR(host.copies().Begin(order));
  } else {
    return absl::InvalidArgumentError("this aggregator holds no copy of the shard");
  }
  open->set_shard(order.shard());
  CADRE_ASSIGN_OR_RETURN(const RunTerms terms, RunTermsOf(*open));
  task.span = Ledger::SpanOf(terms);
  return task;
}

// The files that were fetched are used, if the run is still open.
absl::Status Store(ShardHost& host, const v1::CopyShard& order, Target target,
                   const std::vector<std::string>& paths) {
  const RunTurns::Turn turn = host.BeginTurn(order.run());
  if (!OpenOf(host, order).has_value()) return absl::UnavailableError("the run is not open");
  if (target == Target::kShard) return host.AdoptVersion(order, paths);
  CADRE_RETURN_IF_ERROR(host.copies().Publish(paths));
  host.copies().Add(order);
  return absl::OkStatus();
}

// The answer; nothing if the run is not open.
absl::StatusOr<std::optional<v1::MemberMessage>> Copy(ShardHost& host, const v1::CopyShard& order,
                                                      const CopyTransport& transport) {
  CADRE_ASSIGN_OR_RETURN(const std::optional<Task> task, Begin(host, order));
  if (!task.has_value()) return std::nullopt;
  const bool restores = task->target == Target::kShard;
  if (!task->stored) {
    const auto fetched = host.copies().Fetch(order, task->span, task->target, transport);
    // The coordinator restores the shard in another way.
    if (restores && IsLoss(fetched.status())) return RestoredAnswer(order, fetched.status());
    CADRE_RETURN_IF_ERROR(fetched.status());
    const absl::Status stored = Store(host, order, task->target, *fetched);
    if (!stored.ok()) host.copies().Discard(*fetched);
    CADRE_RETURN_IF_ERROR(stored);
  }
  return restores ? RestoredAnswer(order, absl::OkStatus()) : CopiedAnswer(order);
}

}  // namespace

OrderResult ExecuteCopy(ShardHost& host, const v1::CopyShard& order,
                        const CopyTransport& transport) {
  absl::StatusOr<std::optional<v1::MemberMessage>> copied = Copy(host, order, transport);
  if (copied.ok()) {
    LOG_IF(INFO, copied->has_value() && (*copied)->applied().error().empty())
        << "run " << order.run() << ": version " << order.version() << " of shard " << order.shard()
        << " is copied from " << order.aggregator();
    return {.answer = *std::move(copied)};
  }
  LOG(ERROR) << "cannot copy shard " << order.shard() << " of run " << order.run() << " from "
             << order.aggregator() << ": " << copied.status();
  return {.repeat = absl::IsInvalidArgument(copied.status()) ? absl::OkStatus() : copied.status()};
}

absl::Status OnRequestedFileError(ShardHost& host, const v1::CopyRequest& request,
                                  const absl::Status& error) {
  const std::vector<v1::ShardState> states = host.States();
  const bool own = std::any_of(states.begin(), states.end(), [&](const v1::ShardState& state) {
    return state.run() == request.run() && state.shard() == request.shard();
  });
  return own && absl::IsDataLoss(error) ? host.OnReadError(request.run(), error) : error;
}

}  // namespace cadre
