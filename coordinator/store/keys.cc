// Numbers in keys have a fixed width, so that the order of the keys is the order of the numbers.
#include "coordinator/store/keys.h"

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "base/digest.h"
#include "base/status.h"

namespace cadre {

std::string MemberKey(absl::string_view member_id) {
  return absl::StrCat(kMemberPrefix, member_id);
}

// With the size of the host, since hosts and names may contain any character; so may programs.
std::string StandingKey(absl::string_view host, absl::string_view name) {
  return absl::StrCat(kStandingPrefix, host.size(), "/", host, "/", name);
}

std::string LostRankKey(absl::string_view program, uint32_t rank) {
  return absl::StrCat(kLostRankPrefix, program.size(), "/", program, "/", rank);
}

std::string DeletedKey(absl::string_view run) { return absl::StrCat(kDeletedPrefix, run); }

std::string CordonedAggregatorKey(absl::string_view name) {
  return absl::StrCat(kCordonedAggregatorPrefix, name);
}

std::string RunKey(absl::string_view run) { return absl::StrCat(kRunPrefix, run); }

std::string SpecKey(absl::string_view run) { return absl::StrCat(kSpecPrefix, run); }

std::string LayerTimesKey(absl::string_view device, absl::string_view model) {
  std::string name(device);
  for (char& c : name) {
    const auto byte = static_cast<unsigned char>(c);
    if (!absl::ascii_isgraph(byte) || c == '/') c = '_';
  }
  return absl::StrCat(kProfilePrefix, name, "-", DigestHex(TextDigest(device)), "/", model);
}

std::string GroupsPrefix(absl::string_view run) { return absl::StrCat(kGroupPrefix, run, "/"); }

std::string GroupKey(absl::string_view run, uint32_t group) {
  return absl::StrFormat("%s%05u", GroupsPrefix(run), group);
}

std::string CommitsPrefix(absl::string_view run) { return absl::StrCat(kCommitPrefix, run, "/"); }

std::string CommitKey(absl::string_view run, uint32_t round) {
  return absl::StrFormat("%s%010u", CommitsPrefix(run), round);
}

std::string HistoryPrefix(absl::string_view run) { return absl::StrCat(kHistoryPrefix, run, "/"); }

std::string HistoryKey(absl::string_view run, uint64_t number) {
  return absl::StrFormat("%s%020u", HistoryPrefix(run), number);
}

std::string EventKey(uint64_t number) { return absl::StrFormat("%s%020u", kEventPrefix, number); }

std::string KeyAbove(absl::string_view prefix) {
  std::string above(prefix);
  ++above.back();
  return above;
}

absl::Status ParseRecord(absl::string_view key, absl::string_view bytes,
                         google::protobuf::MessageLite& record) {
  if (record.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("store record '", key, "' cannot be parsed"));
}

absl::Status ParseRun(const std::map<std::string, std::string>& records, const std::string& key,
                      v1::RunRecord& run) {
  const auto record = records.find(key);
  if (record == records.end()) return absl::DataLossError(absl::StrCat("no record '", key, "'"));
  CADRE_RETURN_IF_ERROR(ParseRecord(key, record->second, run));
  if (run.has_spec()) return absl::OkStatus();
  const std::string spec_key = SpecKey(run.run());
  const auto spec = records.find(spec_key);
  if (spec == records.end()) {
    return absl::DataLossError(absl::StrCat("store record '", spec_key, "' is missing"));
  }
  return ParseRecord(spec_key, spec->second, *run.mutable_spec());
}

std::string RunId(uint32_t number, absl::string_view name) {
  return absl::StrCat("run-", number, name.empty() ? "" : "-", name);
}

uint32_t RunNumber(absl::string_view run) {
  uint32_t number = 0;
  if (!absl::ConsumePrefix(&run, "run-")) return 0;
  return absl::SimpleAtoi(run.substr(0, run.find('-')), &number) ? number : 0;
}

}  // namespace cadre
