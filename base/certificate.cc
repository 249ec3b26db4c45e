// OpenSSL's objects are reference-counted C structures; Owned frees them. Only functions that
// OpenSSL 3 does not deprecate are used.
//
// The check at the start of a program repeats what each TLS handshake checks. A handshake that
// fails only reports that it failed; this check says which file is wrong, before the program
// listens or connects.
#include "base/certificate.h"

#include <openssl/bio.h>
#include <openssl/ec.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"

namespace cadre {
namespace {

template <auto kFree>
struct Free {
  template <typename T>
  void operator()(T* object) const {
    kFree(object);
  }
};
template <typename T, auto kFree>
using Owned = std::unique_ptr<T, Free<kFree>>;
using Bio = Owned<BIO, BIO_free_all>;
using Key = Owned<EVP_PKEY, EVP_PKEY_free>;
using Certificate = Owned<X509, X509_free>;
using Names = Owned<GENERAL_NAMES, GENERAL_NAMES_free>;
using Extension = Owned<X509_EXTENSION, X509_EXTENSION_free>;

void FreeCertificates(STACK_OF(X509) * certificates) { sk_X509_pop_free(certificates, X509_free); }
using Certificates = Owned<STACK_OF(X509), FreeCertificates>;

// The newest error of OpenSSL as text. It names a reason and no data.
std::string Reason() {
  const char* reason = ERR_reason_error_string(ERR_peek_last_error());
  ERR_clear_error();
  return reason == nullptr ? "unknown reason" : reason;
}

absl::Status Failure(absl::string_view action) {
  return absl::InternalError(absl::StrCat("cannot ", action, ": ", Reason()));
}

Bio Reader(absl::string_view text) {
  return Bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

std::string Text(BIO* bio) {
  char* data = nullptr;
  const int64_t size = BIO_get_mem_data(bio, &data);
  return std::string(data, size);
}

// Without a callback, OpenSSL would ask on the terminal for the password of an encrypted key.
int NoPassword(char*, int, int, void*) { return 0; }

absl::StatusOr<Key> ReadKey(absl::string_view pem, absl::string_view source) {
  Key key(PEM_read_bio_PrivateKey(Reader(pem).get(), nullptr, NoPassword, nullptr));
  if (key != nullptr) return key;
  return absl::InvalidArgumentError(
      absl::StrCat(source, ": not a private key in PEM without a password: ", Reason()));
}

// All certificates of the text; at least one.
absl::StatusOr<Certificates> ReadCertificates(absl::string_view pem, absl::string_view source) {
  Certificates found(sk_X509_new_null());
  const Bio reader = Reader(pem);
  while (X509* next = PEM_read_bio_X509(reader.get(), nullptr, NoPassword, nullptr)) {
    sk_X509_push(found.get(), next);
  }
  const bool at_end = ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE;
  if (sk_X509_num(found.get()) > 0 && at_end) {
    ERR_clear_error();
    return found;
  }
  return absl::InvalidArgumentError(
      absl::StrCat(source, ": not a list of certificates in PEM: ", Reason()));
}

absl::StatusOr<std::string> KeyToPem(EVP_PKEY* key) {
  const Bio bio(BIO_new(BIO_s_mem()));
  if (PEM_write_bio_PrivateKey(bio.get(), key, nullptr, nullptr, 0, nullptr, nullptr) != 1) {
    return Failure("write a key");
  }
  return Text(bio.get());
}

absl::StatusOr<std::string> CertificateToPem(X509* certificate) {
  const Bio bio(BIO_new(BIO_s_mem()));
  if (PEM_write_bio_X509(bio.get(), certificate) != 1) return Failure("write a certificate");
  return Text(bio.get());
}

absl::Status AddExtension(X509* certificate, X509* issuer, int kind, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  const Extension extension(X509V3_EXT_conf_nid(nullptr, &context, kind, value.c_str()));
  if (extension == nullptr || X509_add_ext(certificate, extension.get(), -1) != 1) {
    return Failure(absl::StrCat("add '", OBJ_nid2sn(kind), "' to a certificate"));
  }
  return absl::OkStatus();
}

absl::Status AddName(GENERAL_NAMES* names, int kind, const std::string& value) {
  GENERAL_NAME* name =
      a2i_GENERAL_NAME(nullptr, nullptr, nullptr, kind, value.c_str(), /*is_nc=*/0);
  if (name == nullptr) {
    ERR_clear_error();
    return absl::InvalidArgumentError(
        absl::StrCat("'", value, "' is not a valid ", kind == GEN_IPADD ? "IP address" : "name"));
  }
  sk_GENERAL_NAME_push(names, name);
  return absl::OkStatus();
}

absl::Status AddNames(X509* certificate, const CertificateRequest& request) {
  const Names names(sk_GENERAL_NAME_new_null());
  CADRE_RETURN_IF_ERROR(AddName(names.get(), GEN_URI, request.uri));
  for (const std::string& dns : request.dns) {
    CADRE_RETURN_IF_ERROR(AddName(names.get(), GEN_DNS, dns));
  }
  for (const std::string& ip : request.ips) {
    CADRE_RETURN_IF_ERROR(AddName(names.get(), GEN_IPADD, ip));
  }
  if (X509_add1_ext_i2d(certificate, NID_subject_alt_name, names.get(), 0, X509V3_ADD_DEFAULT) ==
      1) {
    return absl::OkStatus();
  }
  return Failure("add names to a certificate");
}

// Returns a certificate without issuer, signature and the extensions that depend on its use. Serial
// numbers are random, so that authorities need no record of them.
absl::StatusOr<Certificate> NewCertificate(EVP_PKEY* key, const CertificateRequest& request) {
  const std::string& common_name = request.common_name;
  if (common_name.empty() || common_name.size() > 64) {
    return absl::InvalidArgumentError("the common name must have 1 to 64 characters");
  }
  if (request.begin >= request.end) {
    return absl::InvalidArgumentError("the certificate would never be valid");
  }
  Certificate certificate(X509_new());
  uint64_t serial = 0;
  if (RAND_bytes(reinterpret_cast<unsigned char*>(&serial), sizeof(serial)) != 1) {
    return Failure("draw a random number");
  }
  X509_set_version(certificate.get(), X509_VERSION_3);
  // Positive, as the standard requires.
  ASN1_INTEGER_set_uint64(X509_get_serialNumber(certificate.get()), serial >> 1 | 1);
  ASN1_TIME_set(X509_getm_notBefore(certificate.get()), absl::ToTimeT(request.begin));
  ASN1_TIME_set(X509_getm_notAfter(certificate.get()), absl::ToTimeT(request.end));
  if (X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate.get()), "CN", MBSTRING_UTF8,
                                 reinterpret_cast<const unsigned char*>(common_name.c_str()), -1,
                                 -1, 0) != 1 ||
      X509_set_pubkey(certificate.get(), key) != 1) {
    return Failure("fill in a certificate");
  }
  CADRE_RETURN_IF_ERROR(AddNames(certificate.get(), request));
  return certificate;
}

absl::StatusOr<KeyPair> Sign(X509* certificate, EVP_PKEY* key, EVP_PKEY* signer) {
  if (X509_sign(certificate, signer, EVP_sha256()) == 0) return Failure("sign a certificate");
  KeyPair pair;
  CADRE_ASSIGN_OR_RETURN(pair.key, KeyToPem(key));
  CADRE_ASSIGN_OR_RETURN(pair.certificate, CertificateToPem(certificate));
  return pair;
}

absl::StatusOr<Key> NewKey() {
  Key key(EVP_EC_gen("P-256"));
  if (key == nullptr) return Failure("generate a key");
  return key;
}

absl::Time ToTime(const ASN1_TIME* time) {
  tm parts = {};
  if (ASN1_TIME_to_tm(time, &parts) != 1) return absl::InfinitePast();
  return absl::FromTM(parts, absl::UTCTimeZone());
}

CertificateInfo InfoOf(X509* certificate) {
  CertificateInfo info;
  info.end = ToTime(X509_get0_notAfter(certificate));
  const Names names(static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr)));
  for (int i = 0; i < sk_GENERAL_NAME_num(names.get()); ++i) {
    const GENERAL_NAME* name = sk_GENERAL_NAME_value(names.get(), i);
    if (name->type != GEN_URI) continue;
    const ASN1_IA5STRING* uri = name->d.uniformResourceIdentifier;
    info.uris.emplace_back(reinterpret_cast<const char*>(ASN1_STRING_get0_data(uri)),
                           ASN1_STRING_length(uri));
  }
  return info;
}

// Verifies the first certificate of `chain`. The authorities are trusted; the other certificates of
// `chain` may serve as intermediate ones.
absl::Status VerifyChain(STACK_OF(X509) * chain, STACK_OF(X509) * authorities, absl::Time now,
                         const CertificateSources& sources) {
  const Owned<X509_STORE, X509_STORE_free> store(X509_STORE_new());
  for (int i = 0; i < sk_X509_num(authorities); ++i) {
    X509_STORE_add_cert(store.get(), sk_X509_value(authorities, i));
  }
  const Owned<X509_STORE_CTX, X509_STORE_CTX_free> context(X509_STORE_CTX_new());
  if (X509_STORE_CTX_init(context.get(), store.get(), sk_X509_value(chain, 0), chain) != 1) {
    return Failure("verify a certificate");
  }
  X509_STORE_CTX_set_time(context.get(), 0, absl::ToTimeT(now));
  if (X509_verify_cert(context.get()) == 1) return absl::OkStatus();
  const int error = X509_STORE_CTX_get_error(context.get());
  return absl::InvalidArgumentError(
      absl::StrCat(sources.certificate, ": not valid with the authorities in ", sources.authority,
                   ": ", X509_verify_cert_error_string(error)));
}

}  // namespace

absl::StatusOr<CertificateInfo> ReadCertificate(absl::string_view pem, absl::string_view source) {
  CADRE_ASSIGN_OR_RETURN(const Certificates found, ReadCertificates(pem, source));
  return InfoOf(sk_X509_value(found.get(), 0));
}

absl::StatusOr<KeyPair> MakeAuthority(const CertificateRequest& request) {
  CADRE_ASSIGN_OR_RETURN(const Key key, NewKey());
  CADRE_ASSIGN_OR_RETURN(const Certificate certificate, NewCertificate(key.get(), request));
  X509* authority = certificate.get();
  X509_set_issuer_name(authority, X509_get_subject_name(authority));
  CADRE_RETURN_IF_ERROR(
      AddExtension(authority, authority, NID_basic_constraints, "critical,CA:TRUE,pathlen:0"));
  CADRE_RETURN_IF_ERROR(AddExtension(authority, authority, NID_key_usage, "critical,keyCertSign"));
  CADRE_RETURN_IF_ERROR(AddExtension(authority, authority, NID_subject_key_identifier, "hash"));
  return Sign(authority, key.get(), key.get());
}

absl::StatusOr<KeyPair> IssueCertificate(const KeyPair& authority,
                                         const CertificateRequest& request) {
  CADRE_ASSIGN_OR_RETURN(const Key signer, ReadKey(authority.key, "the authority's key"));
  CADRE_ASSIGN_OR_RETURN(const Certificates issuers,
                         ReadCertificates(authority.certificate, "the authority's certificate"));
  X509* issuer = sk_X509_value(issuers.get(), 0);
  if (X509_check_private_key(issuer, signer.get()) != 1) {
    ERR_clear_error();
    return absl::InvalidArgumentError("the authority's key is not that of its certificate");
  }
  CADRE_ASSIGN_OR_RETURN(const Key key, NewKey());
  CADRE_ASSIGN_OR_RETURN(const Certificate certificate, NewCertificate(key.get(), request));
  X509_set_issuer_name(certificate.get(), X509_get_subject_name(issuer));
  CADRE_RETURN_IF_ERROR(
      AddExtension(certificate.get(), issuer, NID_basic_constraints, "critical,CA:FALSE"));
  CADRE_RETURN_IF_ERROR(
      AddExtension(certificate.get(), issuer, NID_key_usage, "critical,digitalSignature"));
  CADRE_RETURN_IF_ERROR(
      AddExtension(certificate.get(), issuer, NID_ext_key_usage, "serverAuth,clientAuth"));
  CADRE_RETURN_IF_ERROR(
      AddExtension(certificate.get(), issuer, NID_authority_key_identifier, "keyid:always"));
  return Sign(certificate.get(), key.get(), signer.get());
}

absl::StatusOr<CertificateInfo> CheckCertificate(const KeyPair& pair, absl::string_view authorities,
                                                 const CertificateSources& sources,
                                                 absl::Time now) {
  CADRE_ASSIGN_OR_RETURN(const Key key, ReadKey(pair.key, sources.key));
  CADRE_ASSIGN_OR_RETURN(const Certificates chain,
                         ReadCertificates(pair.certificate, sources.certificate));
  CADRE_ASSIGN_OR_RETURN(const Certificates roots,
                         ReadCertificates(authorities, sources.authority));
  X509* leaf = sk_X509_value(chain.get(), 0);
  if (X509_check_private_key(leaf, key.get()) != 1) {
    ERR_clear_error();
    return absl::InvalidArgumentError(
        absl::StrCat(sources.key, ": not the key of the certificate in ", sources.certificate));
  }
  CADRE_RETURN_IF_ERROR(VerifyChain(chain.get(), roots.get(), now, sources));
  return InfoOf(leaf);
}

}  // namespace cadre
