// Within one call, the newest record of a key replaces earlier ones, so a record that several
// handlers change is written once. Erasures precede records: EndRun erases all groups of a run, and
// a record that is put later in the same call must survive.
#include "coordinator/events/outbox.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include "absl/strings/match.h"

namespace cadre {
namespace {

// Equal messages must have equal bytes, including their maps, so that a replay is bit-identical.
std::string Serialize(const google::protobuf::MessageLite& record) {
  std::string bytes;
  google::protobuf::io::StringOutputStream stream(&bytes);
  google::protobuf::io::CodedOutputStream coded(&stream);
  coded.SetSerializationDeterministic(true);
  record.SerializeToCodedStream(&coded);
  return bytes;
}

}  // namespace

void Outbox::Put(const std::string& key, const google::protobuf::MessageLite& record) {
  records_[key] = Serialize(record);
}

void Outbox::EraseOne(const std::string& key) {
  records_.erase(key);
  erasures_.push_back({Store::Op::Kind::kErase, key, ""});
}

void Outbox::EraseBelow(const std::string& prefix) {
  auto it = records_.lower_bound(prefix);
  while (it != records_.end() && absl::StartsWith(it->first, prefix)) it = records_.erase(it);
  erasures_.push_back({Store::Op::Kind::kErasePrefix, prefix, ""});
}

void Outbox::SendTo(ConnectionId connection, v1::CoordinatorMessage message) {
  message.set_epoch(epoch_);
  others_.emplace_back(Send{connection, std::move(message)});
}

void Outbox::End(ConnectionId connection, absl::Status status) {
  others_.emplace_back(Disconnect{connection, std::move(status)});
}

std::vector<Action> Outbox::Take() {
  std::vector<Action> actions(erasures_.begin(), erasures_.end());
  for (auto& [key, value] : records_) {
    actions.emplace_back(Store::Op{Store::Op::Kind::kPut, key, std::move(value)});
  }
  for (Action& action : others_) actions.push_back(std::move(action));
  erasures_.clear();
  records_.clear();
  others_.clear();
  return actions;
}

}  // namespace cadre
