// The coordinator's replies as tables and JSON (see Print in cli/render.h), and notes on updates.
//
// Thread-safe (pure functions), except PredictionNotes, which is thread-compatible.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "cli/render.h"
#include "proto/cadre/v1/control.pb.h"

namespace cadre {

// `cadre runs`: one row per run; `wide`: also what its groups exchange.
std::string RunsTable(const google::protobuf::RepeatedPtrField<v1::RunStatus>& runs,
                      bool wide = false);
// The share of the transfers during which training continued: 1 - exposed_exchange_seconds /
// transfer_seconds, at least 0, since groups also wait for one another and copy values. NaN without
// transfers.
double HiddenExchangeShare(const v1::RunStatus& run);
// `cadre adopt`: one row per run.
std::string AdoptedTable(const v1::AdoptReply& reply);
// `cadre status`: everything, except the details of groups. `coordinator` is its address.
std::string OverviewText(const v1::StatusReply& status, const std::string& coordinator);
// `cadre describe`: the groups of one run in detail.
std::string RunDetailsText(const v1::StatusReply& status);
// `cadre members`: workers and aggregators; `wide`: also ids, addresses and disks.
std::string MembersText(const v1::StatusReply& status, bool wide = false);
Json MembersJson(const v1::StatusReply& status);

// `cadre history`: one row per commit or evaluation.
std::string HistoryTable(const v1::HistoryReply& history);
// `cadre events`: a line with its line break.
std::string EventLine(const v1::ClusterEvent& event);
// `cadre health`: what needs an operator, in sentences.
std::vector<std::string> ProblemsOf(const v1::StatusReply& status);

// Whether a worker of another group computes on a host and device of this group. The prediction of
// a step does not account for that.
bool SharesDevices(const v1::GroupStatus& group, const v1::StatusReply& status);

// The texts below are "" if nothing is known yet.

// "0.42: the groups agree: ...".
std::string DiscrepancyText(const v1::RunStatus& run);
// "data=1,model=2", and whether layers are placed, if the plan is known (in details of a run).
std::string MeshText(const v1::GroupStatus& group);
// "10.0 us, 1.25 GB/s, tcp".
std::string LinkText(const v1::GroupStatus& group);
// "4 buckets: ring 2, halving-doubling 2".
std::string BucketsText(const v1::GroupStatus& group);
// "-12%": the step was predicted to be 12% shorter than it is.
std::string ErrorText(const v1::GroupStatus& group);
// "41 ms, 6% waiting".
std::string StepText(const v1::GroupStatus& group);

// Notes on the time that the steps of a group take, compared with the prediction. A group measures
// this time repeatedly, and every update carries the latest measurement.
class PredictionNotes {
 public:
  // A line for each group with a measurement that no earlier call returned, such as
  // "run-1  group 0  a step takes 41 ms, 30 ms predicted (-27%); compute: layers took ...".
  std::vector<std::string> New(const v1::WatchUpdate& update);

 private:
  // Generation and step seconds of the latest note, by run and group.
  std::map<std::pair<std::string, uint32_t>, std::pair<uint32_t, double>> noted_;
};

}  // namespace cadre
