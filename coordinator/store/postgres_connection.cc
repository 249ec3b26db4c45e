// libpq's non-blocking interface with poll: its blocking functions have no limit while a server
// accepts a connection and does not answer.
//
// A statement has its parameters in one message of the protocol, which the server executes only
// when it is complete. So a process that is stopped in between leaves no open transaction behind,
// whose locks its successor would wait for.
#include "coordinator/store/postgres_connection.h"

#include <arpa/inet.h>
#include <libpq-fe.h>
#include <poll.h>

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status.h"

namespace cadre {
namespace {

// Types of array elements in PostgreSQL's catalogue.
constexpr uint32_t kTextType = 25;
constexpr uint32_t kBytesType = 17;

// Why a server refuses a connection permanently, by parts of its English message: libpq has no code
// for it.
struct RefusedConnection {
  const char* object;
  const char* message;
  absl::StatusCode code;
  const char* remedy;
};
constexpr RefusedConnection kRefusedConnections[] = {
    {"", "password authentication failed", absl::StatusCode::kPermissionDenied,
     "check user and password (PGPASSFILE, PGPASSWORD)"},
    {"", "no password supplied", absl::StatusCode::kPermissionDenied,
     "set PGPASSFILE or PGPASSWORD"},
    {"", "no pg_hba.conf entry", absl::StatusCode::kPermissionDenied,
     "permit this host and user in the server's pg_hba.conf"},
    {"database \"", "does not exist", absl::StatusCode::kNotFound, "create it (createdb)"},
    {"role \"", "does not exist", absl::StatusCode::kNotFound, "create it (createuser)"},
    {"root certificate file", "does not exist", absl::StatusCode::kFailedPrecondition,
     "set sslrootcert"},
    {"", "certificate verify failed", absl::StatusCode::kFailedPrecondition,
     "the authority in sslrootcert must have signed the server's certificate, which must be valid"},
    {"server certificate for", "does not match host name", absl::StatusCode::kFailedPrecondition,
     "with sslmode=verify-full, the server's certificate must name the host of the address"},
    {"", "server does not support SSL", absl::StatusCode::kFailedPrecondition,
     "set ssl = on in the server's postgresql.conf, and its certificate"},
};

// What an SQLSTATE means here; its prefix is compared.
struct SqlError {
  const char* state;
  absl::StatusCode code;
  const char* remedy;
};
constexpr SqlError kSqlErrors[] = {
    {"53100", absl::StatusCode::kResourceExhausted, "the server's disk is full"},
    {"53", absl::StatusCode::kUnavailable, ""},     // insufficient resources
    {"57", absl::StatusCode::kUnavailable, ""},     // shutdown, cancelled statement
    {"40", absl::StatusCode::kUnavailable, ""},     // rolled back
    {"55P03", absl::StatusCode::kUnavailable, ""},  // a lock was not available in time
    {"08", absl::StatusCode::kUnavailable, ""},     // connection
    {"25006", absl::StatusCode::kFailedPrecondition,
     "it is a replica; name the primary (target_session_attrs=read-write)"},
    {"42501", absl::StatusCode::kPermissionDenied,
     "the user needs the rights to create, read and change the tables cadre_record and "
     "cadre_leader"},
    {"42P01", absl::StatusCode::kFailedPrecondition, ""},
};

std::string OneLine(absl::string_view text) {
  return absl::StrReplaceAll(absl::StripSuffix(text, "\n"), {{"\n", "; "}});
}

constexpr char kDefaultPort[] = "5432";

// Whether the URL has a second '@' before its database, or one in its name. libpq then takes a part
// of the password as the host or the database, which errors show.
bool HasMisplacedAt(absl::string_view url) {
  const std::pair<absl::string_view, absl::string_view> scheme =
      absl::StrSplit(url, absl::MaxSplits("://", 1));
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(scheme.second, absl::MaxSplits('/', 1));
  const absl::string_view database = parts.second.substr(0, parts.second.find('?'));
  return std::count(parts.first.begin(), parts.first.end(), '@') > 1 ||
         absl::StrContains(database, "@");
}

// Others than numbers are parts of a password with a '/'.
bool IsPort(absl::string_view text) { return absl::c_all_of(text, absl::ascii_isdigit); }

void AppendNumber(std::string& bytes, uint32_t number) {
  const uint32_t big_endian = htonl(number);
  bytes.append(reinterpret_cast<const char*>(&big_endian), sizeof(big_endian));
}

PostgresConnection::Param Array(const std::vector<std::string>& values, uint32_t type) {
  std::string bytes;
  AppendNumber(bytes, values.empty() ? 0 : 1);  // dimensions
  AppendNumber(bytes, 0);                       // no element is NULL
  AppendNumber(bytes, type);
  if (!values.empty()) {
    AppendNumber(bytes, static_cast<uint32_t>(values.size()));
    AppendNumber(bytes, 1);  // index of the first element
  }
  for (const std::string& value : values) {
    AppendNumber(bytes, static_cast<uint32_t>(value.size()));
    bytes.append(value);
  }
  return {std::move(bytes), /*binary=*/true};
}

}  // namespace

bool IsPostgresUrl(absl::string_view text) {
  return absl::StartsWith(text, "postgresql://") || absl::StartsWith(text, "postgres://");
}

void PostgresConnection::Finish::operator()(pg_conn* connection) const { PQfinish(connection); }

void PostgresConnection::Clear::operator()(pg_result* result) const { PQclear(result); }

PostgresConnection::~PostgresConnection() = default;

PostgresConnection::Param PostgresConnection::TextArray(const std::vector<std::string>& values) {
  return Array(values, kTextType);
}

PostgresConnection::Param PostgresConnection::BytesArray(const std::vector<std::string>& values) {
  return Array(values, kBytesType);
}

// libpq tries several hosts itself, but spends all the time on the first that does not answer.
absl::StatusOr<std::unique_ptr<PostgresConnection>> PostgresConnection::Connect(
    const std::string& url, absl::Duration timeout) {
  CADRE_ASSIGN_OR_RETURN(const std::vector<Host> hosts, HostsOf(url));
  const SteadyClock clock;
  const absl::Time until = clock.Now() + timeout;
  std::vector<std::string> reasons;
  // That of a host which may be reached later; otherwise that of the last refusal.
  absl::StatusCode code = absl::StatusCode::kOk;
  for (size_t i = 0; i < hosts.size(); ++i) {
    const absl::Time now = clock.Now();
    const absl::Duration left = std::max(until - now, absl::ZeroDuration());
    auto opened =
        ConnectTo(url, hosts[i], timeout, now + left / static_cast<int64_t>(hosts.size() - i));
    if (opened.ok()) return opened;
    if (code != absl::StatusCode::kUnavailable) code = opened.status().code();
    reasons.emplace_back(opened.status().message());
  }
  return absl::Status(code, absl::StrJoin(reasons, "; "));
}

absl::StatusOr<std::vector<PostgresConnection::Host>> PostgresConnection::HostsOf(
    const std::string& url) {
  if (HasMisplacedAt(url)) {
    return absl::InvalidArgumentError(
        "the store's address has an '@' that does not end USER[:PASSWORD]; write '%40' for an '@' "
        "and '%2F' for a '/' in a password");
  }
  char* error = nullptr;
  const std::unique_ptr<PQconninfoOption, decltype(&PQconninfoFree)> parsed(
      PQconninfoParse(url.c_str(), &error), &PQconninfoFree);
  // libpq's message may quote the password.
  PQfreemem(error);
  const absl::Status malformed = absl::InvalidArgumentError(
      "the store's address is not of the form "
      "postgresql://[USER@]HOST[:PORT]/DATABASE[?sslmode=verify-full]");
  if (parsed == nullptr) return malformed;
  const auto list = [&](absl::string_view keyword) -> std::vector<std::string> {
    for (const PQconninfoOption* option = parsed.get(); option->keyword != nullptr; ++option) {
      if (keyword != option->keyword || option->val == nullptr) continue;
      return absl::StrSplit(option->val, ',');
    }
    return {};
  };
  const std::vector<std::string> names = list("host");
  const std::vector<std::string> addresses = list("hostaddr");
  const std::vector<std::string> ports = list("port");
  if (!absl::c_all_of(ports, IsPort)) return malformed;
  const size_t count = std::max(names.size(), addresses.size());
  // libpq refuses lists that do not match.
  const auto matches = [&](const std::vector<std::string>& values) {
    return values.empty() || values.size() == count;
  };
  if (count < 2 || !matches(names) || !matches(addresses) ||
      (ports.size() != 1 && !matches(ports))) {
    return std::vector<Host>(1);
  }
  std::vector<Host> hosts(count);
  for (size_t i = 0; i < count; ++i) {
    if (!names.empty()) hosts[i].name = names[i];
    if (!addresses.empty()) hosts[i].address = addresses[i];
    if (ports.size() == count) hosts[i].port = ports[i].empty() ? kDefaultPort : ports[i];
    // An empty value does not replace the URL's list.
    if (hosts[i].name.empty() != names.empty() || hosts[i].address.empty() != addresses.empty()) {
      return std::vector<Host>(1);
    }
  }
  return hosts;
}

absl::StatusOr<std::unique_ptr<PostgresConnection>> PostgresConnection::ConnectTo(
    const std::string& url, const Host& host, absl::Duration unacknowledged, absl::Time until) {
  const std::string limit = absl::StrCat(absl::ToInt64Milliseconds(unacknowledged));
  // The URL has precedence over what precedes it, and what follows over the URL.
  const char* const names[] = {"application_name",
                               "tcp_user_timeout",
                               "keepalives_idle",
                               "dbname",
                               "host",
                               "hostaddr",
                               "port",
                               nullptr};
  const char* const values[] = {
      "cadre-coordinator",  limit.c_str(),     "5",    url.c_str(), host.name.c_str(),
      host.address.c_str(), host.port.c_str(), nullptr};
  auto opened = std::unique_ptr<PostgresConnection>(new PostgresConnection());
  opened->connection_.reset(PQconnectStartParams(names, values, /*expand_dbname=*/1));
  CADRE_RETURN_IF_ERROR(opened->FinishConnecting(until));
  return opened;
}

void PostgresConnection::SetName() {
  const auto text = [](const char* value) { return absl::NullSafeStringView(value); };
  const PGconn* const connection = connection_.get();
  name_ = absl::StrCat("database ", text(PQdb(connection)), " at ", text(PQhost(connection)), ":",
                       text(PQport(connection)));
}

absl::Status PostgresConnection::FinishConnecting(absl::Time until) {
  if (connection_ == nullptr) return absl::ResourceExhaustedError("no memory for a connection");
  PGconn* const connection = connection_.get();
  SetName();
  PostgresPollingStatusType state = PGRES_POLLING_WRITING;
  if (PQstatus(connection) == CONNECTION_BAD) state = PGRES_POLLING_FAILED;
  while (state != PGRES_POLLING_OK) {
    if (state == PGRES_POLLING_FAILED) {
      const std::string reason = OneLine(PQerrorMessage(connection));
      for (const RefusedConnection& refused : kRefusedConnections) {
        if (!absl::StrContains(reason, refused.object) ||
            !absl::StrContains(reason, refused.message)) {
          continue;
        }
        return absl::Status(refused.code, absl::StrCat(name_, ": ", reason, "; ", refused.remedy));
      }
      return absl::UnavailableError(absl::StrCat(name_, ": ", reason));
    }
    CADRE_RETURN_IF_ERROR(Wait(state == PGRES_POLLING_WRITING, until, "connect"));
    state = PQconnectPoll(connection);
  }
  // A host name may have several addresses.
  SetName();
  if (PQsetnonblocking(connection, 1) != 0) return Error(nullptr);
  return absl::OkStatus();
}

absl::Status PostgresConnection::Wait(bool write, absl::Time until, absl::string_view what) {
  pollfd polled = {.fd = PQsocket(connection_.get()),
                   .events = static_cast<int16_t>(write ? POLLIN | POLLOUT : POLLIN),
                   .revents = 0};
  while (true) {
    const absl::Duration left = until - clock_.Now();
    const auto milliseconds =
        static_cast<int>(std::max<int64_t>(absl::ToInt64Milliseconds(left), 0));
    const int ready = poll(&polled, 1, milliseconds);
    if (ready > 0) return absl::OkStatus();
    if (left > absl::ZeroDuration()) continue;
    // What arrives later belongs to no statement.
    connection_.reset();
    return absl::UnavailableError(absl::StrCat(name_, ": no answer in time: ", what));
  }
}

bool PostgresConnection::ended() const {
  return connection_ == nullptr || PQstatus(connection_.get()) != CONNECTION_OK;
}

absl::StatusOr<std::vector<PostgresConnection::Row>> PostgresConnection::Run(
    const Statement& statement, const std::vector<Param>& params, absl::Duration timeout) {
  const absl::Time until = clock_.Now() + timeout;
  CADRE_RETURN_IF_ERROR(LimitStatements(timeout, until));
  std::vector<const char*> values;
  std::vector<int> lengths;
  std::vector<int> formats;
  for (const Param& param : params) {
    values.push_back(param.bytes.c_str());
    lengths.push_back(static_cast<int>(param.bytes.size()));
    formats.push_back(param.binary ? 1 : 0);
  }
  const int sent = PQsendQueryParams(
      connection_.get(), statement.sql, static_cast<int>(params.size()),
      /*paramTypes=*/nullptr, values.data(), lengths.data(), formats.data(), /*resultFormat=*/1);
  if (sent == 0) return Error(nullptr);
  CADRE_ASSIGN_OR_RETURN(const Result result, Await(until, statement.name));
  std::vector<Row> rows(PQntuples(result.get()));
  for (size_t row = 0; row < rows.size(); ++row) {
    for (int column = 0; column < PQnfields(result.get()); ++column) {
      rows[row].emplace_back(PQgetvalue(result.get(), static_cast<int>(row), column),
                             PQgetlength(result.get(), static_cast<int>(row), column));
    }
  }
  return rows;
}

absl::Status PostgresConnection::RunAll(const Statement& statements, absl::Duration timeout) {
  const absl::Time until = clock_.Now() + timeout;
  CADRE_RETURN_IF_ERROR(LimitStatements(timeout, until));
  if (PQsendQuery(connection_.get(), statements.sql) == 0) return Error(nullptr);
  return Await(until, statements.name).status();
}

// The server's limit is a little shorter than that of the client, which then learns the reason and
// keeps the connection.
absl::Status PostgresConnection::LimitStatements(absl::Duration timeout, absl::Time until) {
  if (ended()) return absl::UnavailableError(absl::StrCat(name_, ": the connection has ended"));
  if (limit_ == timeout) return absl::OkStatus();
  const std::string sql =
      absl::StrCat("SET statement_timeout = ", absl::ToInt64Milliseconds(timeout * 0.9));
  if (PQsendQuery(connection_.get(), sql.c_str()) == 0) return Error(nullptr);
  CADRE_RETURN_IF_ERROR(Await(until, "limit statements").status());
  limit_ = timeout;
  return absl::OkStatus();
}

absl::StatusOr<PostgresConnection::Result> PostgresConnection::Await(absl::Time until,
                                                                     const char* name) {
  int unsent = 1;
  while ((unsent = PQflush(connection_.get())) > 0) {
    CADRE_RETURN_IF_ERROR(Wait(/*write=*/true, until, name));
    if (PQconsumeInput(connection_.get()) == 0) return Error(nullptr);
  }
  if (unsent < 0) return Error(nullptr);
  Result last;
  absl::Status error;
  while (true) {
    while (PQisBusy(connection_.get()) != 0) {
      CADRE_RETURN_IF_ERROR(Wait(/*write=*/false, until, name));
      if (PQconsumeInput(connection_.get()) == 0) return Error(nullptr);
    }
    Result next(PQgetResult(connection_.get()));
    if (next == nullptr) break;
    const ExecStatusType status = PQresultStatus(next.get());
    if (status != PGRES_TUPLES_OK && status != PGRES_COMMAND_OK && error.ok()) {
      error = Error(next.get());
    }
    last = std::move(next);
  }
  if (!error.ok()) return error;
  if (last == nullptr) return Error(nullptr);
  return last;
}

absl::Status PostgresConnection::Error(const pg_result* result) const {
  const char* const state =
      result == nullptr ? nullptr : PQresultErrorField(result, PG_DIAG_SQLSTATE);
  const std::string reason =
      OneLine(result == nullptr ? PQerrorMessage(connection_.get()) : PQresultErrorMessage(result));
  const std::string text = absl::StrCat(name_, ": ", reason);
  // libpq reports the end of the connection without a state.
  if (state == nullptr) return absl::UnavailableError(text);
  for (const SqlError& known : kSqlErrors) {
    if (!absl::StartsWith(state, known.state)) continue;
    const absl::string_view remedy = known.remedy;
    return absl::Status(known.code, absl::StrCat(text, remedy.empty() ? "" : "; ", remedy));
  }
  return absl::InternalError(absl::StrCat(text, " (", state, ")"));
}

}  // namespace cadre
