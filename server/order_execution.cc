#include "server/order_execution.h"

#include <glog/logging.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/digest.h"

namespace cadre {
namespace {

// Whether nothing is lost if the shard is not opened: the run has no version yet.
bool IsNew(const ShardHost& host, const v1::OpenRun& open) {
  const std::vector<v1::ShardState> states = host.States();
  return open.version() == 0 && !open.has_hollow() &&
         std::none_of(states.begin(), states.end(),
                      [&](const v1::ShardState& state) { return state.run() == open.run(); });
}

v1::MemberMessage Refusal(const v1::OpenRun& open, const absl::Status& status) {
  v1::MemberMessage message;
  v1::RunOpened& refused = *message.mutable_run_opened();
  refused.set_run(open.run());
  refused.set_shard(open.shard());
  refused.set_shards(open.shards());
  refused.set_error(std::string(status.message()));
  return message;
}

OrderResult OpenRun(ShardHost& host, const v1::OpenRun& open) {
  absl::StatusOr<v1::RunOpened> opened = host.OpenRun(open);
  // An invalid order is not repeated: it would fail each time.
  if (absl::IsInvalidArgument(opened.status())) {
    opened = Refusal(open, opened.status()).run_opened();
  } else if (!opened.ok()) {
    LOG(ERROR) << "cannot open run " << open.run() << ": " << opened.status();
    OrderResult failed{.repeat = opened.status()};
    if (IsNew(host, open)) failed.give_up = Refusal(open, opened.status());
    return failed;
  }
  if (opened->hollow()) {
    LOG(WARNING) << "run " << open.run() << ": shard " << open.shard() << " of " << open.shards()
                 << " is open without the values of a version; the next one follows version "
                 << opened->version();
  } else if (opened->error().empty()) {
    LOG(INFO) << "run " << open.run() << ": shard " << open.shard() << " of " << open.shards()
              << " is open at version " << opened->version() << ", digest "
              << DigestHex(opened->digest());
  } else {
    LOG(ERROR) << "run " << open.run() << " cannot start: " << opened->error();
  }
  host.copies().List(open, *opened);
  v1::MemberMessage message;
  *message.mutable_run_opened() = *opened;
  return {.answer = std::move(message)};
}

// An Apply whose contributions are incomplete is answered by each attempt.
OrderResult Apply(ShardHost& host, const v1::Apply& apply) {
  const absl::StatusOr<v1::Applied> applied = host.Apply(apply);
  v1::MemberMessage message;
  if (absl::IsFailedPrecondition(applied.status())) {
    // The coordinator has the shard restored, and repeats the order.
    v1::RunOpened& shard = *message.mutable_run_opened();
    shard = host.Describe(apply.run());
    LOG(WARNING) << applied.status();
    if (shard.hollow()) return {.answer = std::move(message)};
  }
  if (!applied.ok()) return {.repeat = applied.status()};
  const bool complete = applied->missing().empty();
  if (complete && applied->error().empty()) {
    LOG(INFO) << "run " << apply.run() << ": version " << apply.round() << " of "
              << apply.participants_size() << " groups, digest " << DigestHex(applied->digest());
  } else if (complete) {
    LOG(ERROR) << "cannot apply round " << apply.round() << " of " << apply.run() << ": "
               << applied->error();
  }
  *message.mutable_applied() = *applied;
  return {.answer = std::move(message),
          .repeat = complete ? absl::OkStatus()
                             : absl::UnavailableError(absl::StrCat(
                                   "the contributions of groups ",
                                   absl::StrJoin(applied->missing(), ", "), " are not complete"))};
}

OrderResult ReportRun(ShardHost& host, const std::string& run) {
  v1::MemberMessage message;
  *message.mutable_run_report() = host.ReportRun(run);
  return {.answer = std::move(message)};
}

OrderResult CloseRun(ShardHost& host, const std::string& run) {
  const absl::Status status = host.CloseRun(run);
  if (status.ok()) LOG(INFO) << "run " << run << " has ended";
  return {.repeat = status};
}

OrderResult DeleteRun(ShardHost& host, const v1::DeleteRun& order) {
  const absl::Status status = host.DeleteRun(order);
  if (!status.ok()) {
    LOG(ERROR) << "cannot remove run " << order.run() << ": " << status;
    return {.repeat = absl::IsInvalidArgument(status) ? absl::OkStatus() : status};
  }
  v1::MemberMessage message;
  message.mutable_run_deleted()->set_run(order.run());
  message.mutable_run_deleted()->set_lineage(order.lineage());
  return {.answer = std::move(message)};
}

}  // namespace

bool IsOrder(const v1::CoordinatorMessage& message) {
  return message.has_open_run() || message.has_apply() || message.has_fence() ||
         message.has_report_run() || message.has_close_run() || message.has_delete_run() ||
         message.has_publish();
}

void OnArrival(ShardHost& host, const v1::CoordinatorMessage& message) {
  if (message.has_fence()) host.Fence(message.fence());
  if (message.has_delete_run()) host.Leave(message.delete_run());
  if (!message.has_open_run()) return;
  const v1::OpenRun& open = message.open_run();
  if (host.ReportRun(open.run()).open().lineage() != open.lineage()) return;
  v1::Fence fence;
  fence.set_run(open.run());
  for (const auto& [group, generation] : open.generations()) {
    const auto key = open.keys().find(group);
    fence.set_group(group);
    fence.set_generation(generation);
    fence.set_key(key == open.keys().end() ? "" : key->second);
    host.Fence(fence);
  }
}

OrderResult ExecuteOrder(ShardHost& host, const v1::CoordinatorMessage& order) {
  if (order.has_open_run()) return OpenRun(host, order.open_run());
  if (order.has_apply()) return Apply(host, order.apply());
  if (order.has_report_run()) return ReportRun(host, order.report_run().run());
  if (order.has_close_run()) return CloseRun(host, order.close_run().run());
  if (order.has_delete_run()) return DeleteRun(host, order.delete_run());
  if (order.has_publish()) {
    host.Publish(order.publish());
    return {};
  }
  // It may precede the run, which was not open when the message arrived.
  host.Fence(order.fence());
  return {};
}

}  // namespace cadre
