#include "coordinator/store/leader_row.h"

#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace cadre {
namespace {

// Limit of a statement: less than kLeaderTimeout, so that a leader notices early that it is late.
constexpr absl::Duration kRowTimeout = absl::Seconds(1);

}  // namespace

absl::StatusOr<PostgresConnection*> LeaderRow::Connected() {
  if (connection_ == nullptr || connection_->ended()) {
    connection_.reset();
    CADRE_ASSIGN_OR_RETURN(connection_, PostgresConnection::Connect(url_, kRowTimeout));
    // A beat that is lost with the server is no loss; it waits for no disk.
    CADRE_RETURN_IF_ERROR(connection_->RunAll(
        {"set up the connection", "SET synchronous_commit = off"}, kRowTimeout));
  }
  return connection_.get();
}

std::string LeaderText(const Leader& leader) {
  if (leader.address.empty()) return absl::StrCat("no coordinator leads after term ", leader.term);
  return absl::StrCat("the coordinator at ", leader.address, " leads since term ", leader.term);
}

absl::StatusOr<Leader> LeaderRow::Read() {
  CADRE_ASSIGN_OR_RETURN(PostgresConnection* const connection, Connected());
  CADRE_ASSIGN_OR_RETURN(
      const std::vector<PostgresConnection::Row> rows,
      connection->Run(
          {"read the leader", "SELECT term::text, beat::text, instance, address FROM cadre_leader"},
          {}, kRowTimeout));
  Leader leader;
  if (rows.size() != 1 || !absl::SimpleAtoi(rows[0][0], &leader.term) ||
      !absl::SimpleAtoi(rows[0][1], &leader.beat)) {
    return absl::DataLossError(
        absl::StrCat(connection->name(), ": table cadre_leader must have one row"));
  }
  leader.instance = rows[0][2];
  leader.address = rows[0][3];
  return leader;
}

absl::Status LeaderRow::Beat() {
  CADRE_ASSIGN_OR_RETURN(PostgresConnection* const connection, Connected());
  CADRE_ASSIGN_OR_RETURN(const std::vector<PostgresConnection::Row> rows,
                         connection->Run({"beat",
                                          "UPDATE cadre_leader SET beat = beat + 1 WHERE instance "
                                          "= $1::text RETURNING term::text"},
                                         {PostgresConnection::Text(instance_)}, kRowTimeout));
  if (!rows.empty()) return absl::OkStatus();
  CADRE_ASSIGN_OR_RETURN(const Leader leader, Read());
  return absl::AbortedError(absl::StrCat(LeaderText(leader), ", and this one does not any more"));
}

absl::Status LeaderRow::Release() {
  CADRE_ASSIGN_OR_RETURN(PostgresConnection* const connection, Connected());
  return connection
      ->Run({"release the lead",
             "UPDATE cadre_leader SET instance = '', address = '' WHERE instance = $1::text"},
            {PostgresConnection::Text(instance_)}, kRowTimeout)
      .status();
}

}  // namespace cadre
