#include "coordinator/run/data_agreement.h"

#include <algorithm>
#include <map>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "coordinator/run/run_rules.h"

namespace cadre {

std::optional<std::string> DataAgreement::OnPrepared(const Member& member,
                                                     const v1::Prepared& prepared) {
  // A program need not know the data of the other groups.
  if (run_.slots()[prepared.place().group()].own_loop() && prepared.train_samples() == 0) {
    return Prepare(member, prepared);
  }
  if (prepared.train_samples() == 0) {
    cluster_.Refuse(member.connection, v1::REFUSAL_MALFORMED, "Prepared has no training samples");
    return std::nullopt;
  }
  if (record_.train_samples() == 0) {
    if (auto failed = Record(prepared)) return failed;
  }
  const DataSizes::Sizes of_run = DataSizes::Of(record_);
  sizes_.Set(member.record.host(), DataSizes::Of(prepared));
  if (DataSizes::Of(prepared) != of_run) {
    if (!Outvotes(prepared)) return Fail(member, prepared);
    attribution_.Forget(v1::FAILURE_CAUSE_DATA_DIFFERS);
    if (auto failed = Record(prepared)) return failed;
    if (auto failed = FailOutvoted(of_run)) return failed;
  }
  // If this report has decided the vote, another rank of its group may have been outvoted, and the
  // group has failed.
  if (member.Holds(prepared.place())) return Prepare(member, prepared);
  return std::nullopt;
}

std::optional<std::string> DataAgreement::Record(const v1::Prepared& prepared) {
  record_.set_train_samples(prepared.train_samples());
  record_.set_test_samples(prepared.test_samples());
  if (!prepared.data_left_out().empty()) {
    stored_.AddWarning(absl::StrCat("files that are not used: ", prepared.data_left_out()));
  }
  // The number of samples is known now, so epochs can be converted to steps.
  evaluation_.SetNext(record_.step());
  stored_.Save();
  if (AtEnd(record_, FirstStep(run_.spec()))) {
    return absl::StrCat("no steps left to train: the run starts at step ", FirstStep(run_.spec()),
                        " and ends at step ", TotalSteps(record_));
  }
  // An adopted or rebuilt run does not know until now where it stands.
  if (AtEnd(record_, record_.step())) {
    record_.set_state(v1::RUN_STATE_FINISHING);
    evaluation_.Begin({});
    stored_.Save();
  }
  return std::nullopt;
}

bool DataAgreement::Outvotes(const v1::Prepared& prepared) const {
  if (run_.has_started()) return false;
  // After a restart, it is not known which host has the data of the run.
  return sizes_.CountHosts(DataSizes::Of(prepared)) >
         std::max<size_t>(1, sizes_.CountHosts(DataSizes::Of(record_)));
}

std::optional<std::string> DataAgreement::FailOutvoted(const DataSizes::Sizes& sizes) {
  for (const Slot& slot : run_.slots()) {
    const std::map<uint32_t, v1::Prepared> ranks = slot.prepared_ranks();
    const auto outvoted = std::find_if(ranks.begin(), ranks.end(), [&](const auto& entry) {
      return DataSizes::Of(entry.second) == sizes;
    });
    if (outvoted == ranks.end()) continue;
    const Member* const member = cluster_.members().Find(slot.record().members(outvoted->first));
    if (member == nullptr) continue;
    if (auto failed = Fail(*member, outvoted->second)) return failed;
  }
  return std::nullopt;
}

std::optional<std::string> DataAgreement::Fail(const Member& member, const v1::Prepared& prepared) {
  return attribution_.Fail(
      member, prepared.place(), v1::FAILURE_CAUSE_DATA_DIFFERS,
      absl::StrCat("sees ", prepared.train_samples(), " training and ", prepared.test_samples(),
                   " test samples, others see ", record_.train_samples(), " and ",
                   record_.test_samples(), ": the data sets differ"));
}

std::optional<std::string> DataAgreement::Prepare(const Member& member,
                                                  const v1::Prepared& prepared) {
  const absl::Status status = groups_.Prepare(prepared);
  if (status.ok()) return std::nullopt;
  return attribution_.Fail(member, prepared.place(), v1::FAILURE_CAUSE_PLAN,
                           absl::StrCat("does not follow the group's plan: ", status.message()));
}

}  // namespace cadre
