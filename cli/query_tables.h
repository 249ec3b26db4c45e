// The coordinator's replies as tables and JSON (see Print in cli/render.h).
//
// Thread-safe (pure functions).
#pragma once

#include <string>
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

// "0.42: the groups agree: ..."; empty if nothing is known yet.
std::string DiscrepancyText(const v1::RunStatus& run);

}  // namespace cadre
