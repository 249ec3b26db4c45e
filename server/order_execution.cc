#include "server/order_execution.h"

#include <glog/logging.h>

#include <utility>

#include "absl/status/statusor.h"
#include "base/digest.h"

namespace cadre {
namespace {

OrderResult OpenRun(ShardHost& host, const v1::OpenRun& open) {
  const absl::StatusOr<v1::RunOpened> opened = host.OpenRun(open);
  if (!opened.ok()) {
    LOG(ERROR) << "cannot open run " << open.run() << ": " << opened.status();
    // An invalid order is not repeated.
    return {.repeat = !absl::IsInvalidArgument(opened.status())};
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
  v1::MemberMessage message;
  *message.mutable_run_opened() = *opened;
  return {.answer = std::move(message)};
}

// An Apply whose contributions are incomplete is answered by each attempt.
OrderResult Apply(ShardHost& host, const v1::Apply& apply) {
  const absl::StatusOr<v1::Applied> applied = host.Apply(apply);
  if (!applied.ok()) return {.repeat = true};
  const bool complete = applied->missing().empty();
  if (complete && applied->error().empty()) {
    LOG(INFO) << "run " << apply.run() << ": version " << apply.round() << " of "
              << apply.participants_size() << " groups, digest " << DigestHex(applied->digest());
  } else if (complete) {
    LOG(ERROR) << "cannot apply round " << apply.round() << " of " << apply.run() << ": "
               << applied->error();
  }
  v1::MemberMessage message;
  *message.mutable_applied() = *applied;
  return {.answer = std::move(message), .repeat = !complete};
}

OrderResult ReportRun(ShardHost& host, const std::string& run) {
  v1::MemberMessage message;
  *message.mutable_run_report() = host.ReportRun(run);
  return {.answer = std::move(message)};
}

OrderResult CloseRun(ShardHost& host, const std::string& run) {
  const absl::Status status = host.CloseRun(run);
  if (status.ok()) LOG(INFO) << "run " << run << " has ended";
  return {.repeat = !status.ok()};
}

OrderResult DeleteRun(ShardHost& host, const v1::DeleteRun& order) {
  const absl::Status status = host.DeleteRun(order);
  if (!status.ok()) {
    LOG(ERROR) << "cannot remove run " << order.run() << ": " << status;
    return {.repeat = !absl::IsInvalidArgument(status)};
  }
  v1::MemberMessage message;
  message.mutable_run_deleted()->set_run(order.run());
  message.mutable_run_deleted()->set_lineage(order.lineage());
  return {.answer = std::move(message)};
}

}  // namespace

bool IsOrder(const v1::CoordinatorMessage& message) {
  return message.has_open_run() || message.has_apply() || message.has_fence() ||
         message.has_report_run() || message.has_close_run() || message.has_delete_run();
}

std::string BodyName(const v1::CoordinatorMessage& message) {
  const auto* const field = message.GetDescriptor()->FindFieldByNumber(message.body_case());
  return field == nullptr ? "nothing" : field->name();
}

OrderResult ExecuteOrder(ShardHost& host, const v1::CoordinatorMessage& order) {
  if (order.has_open_run()) return OpenRun(host, order.open_run());
  if (order.has_apply()) return Apply(host, order.apply());
  if (order.has_report_run()) return ReportRun(host, order.report_run().run());
  if (order.has_close_run()) return CloseRun(host, order.close_run().run());
  if (order.has_delete_run()) return DeleteRun(host, order.delete_run());
  host.Fence(order.fence());
  return {};
}

}  // namespace cadre
