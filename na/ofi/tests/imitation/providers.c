/* The machine's libfabric tcp under the names of providers whose cards no machine here has, each with the attributes that its page names:
 * an endpoint that does not keep to them is refused, or the process ends. What is not imitated: virtual addresses (FI_MR_VIRT_ADDR), and
 * everything that a card does. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

/* Between the addresses of a map and those of a table. */
#define SHIFT 0x7f0000001000ull

static const struct row {
	const char *name;
	uint64_t mr_mode, mode;
	enum fi_av_type av;
	int waits;
	size_t inject;
	uint32_t format;
} rows[] = {
	{"efa", FI_MR_LOCAL | FI_MR_ALLOCATED | FI_MR_PROV_KEY, 0, FI_AV_TABLE, 0, 0, FI_ADDR_EFA},
	{"psm2", FI_MR_ALLOCATED | FI_MR_PROV_KEY, FI_CONTEXT, FI_AV_MAP, 0, 64, FI_ADDR_PSMX2},
	{"psm3", FI_MR_ALLOCATED | FI_MR_PROV_KEY, FI_CONTEXT, FI_AV_MAP, 0, 64, FI_ADDR_PSMX3},
	{"opx", 0, FI_CONTEXT2, FI_AV_MAP, 0, 64, FI_ADDR_OPX},
	{"cxi", FI_MR_ENDPOINT | FI_MR_ALLOCATED, 0, FI_AV_TABLE, 1, 192, FI_ADDR_CXI},
}, *row;

/* What the machine's own said, before it was given another name. */
static struct fi_info *origin;

static void *real(const char *name)
{
	static void *library;
	if (!library)
		library = dlopen("libfabric.so.1", RTLD_NOW | RTLD_LOCAL);
	return library ? dlsym(library, name) : NULL;
}

uint32_t fi_version(void)
{
	return ((uint32_t (*)(void)) real("fi_version"))();
}

const char *fi_strerror(int number)
{
	return ((const char *(*)(int)) real("fi_strerror"))(number);
}

struct fi_info *fi_dupinfo(const struct fi_info *info)
{
	return ((struct fi_info *(*)(const struct fi_info *)) real("fi_dupinfo"))(info);
}

void fi_freeinfo(struct fi_info *info)
{
	((void (*)(struct fi_info *)) real("fi_freeinfo"))(info);
}

static void rename_to(char **name, const char *other)
{
	free(*name);
	*name = strdup(other);
}

int fi_getinfo(uint32_t version, const char *node, const char *service, uint64_t flags,
	       const struct fi_info *hints, struct fi_info **list)
{
	int (*call)(uint32_t, const char *, const char *, uint64_t, const struct fi_info *, struct fi_info **) = real("fi_getinfo");
	const char *wanted = hints->fabric_attr->prov_name;
	struct fi_info *plain, *first;
	size_t at;
	int result;
	for (at = 0; at < sizeof(rows) / sizeof(*rows); at++)
		if (wanted && !strcmp(wanted, rows[at].name))
			row = &rows[at];
	if (!row || !wanted || strcmp(wanted, row->name) || (row->mr_mode & ~(uint64_t) hints->domain_attr->mr_mode) ||
	    (row->mode & ~hints->mode))
		return -FI_ENODATA;
	plain = fi_dupinfo(hints);
	rename_to(&plain->fabric_attr->prov_name, "tcp");
	result = call(version, "127.0.0.1", NULL, FI_SOURCE | FI_NUMERICHOST, plain, &first);
	fi_freeinfo(plain);
	if (result)
		return result;
	origin = fi_dupinfo(first);
	*list = fi_dupinfo(first);
	fi_freeinfo(first);
	rename_to(&(*list)->fabric_attr->prov_name, row->name);
	(*list)->domain_attr->mr_mode = row->mr_mode;
	(*list)->domain_attr->av_type = row->av;
	(*list)->mode = row->mode;
	(*list)->tx_attr->inject_size = row->inject;
	(*list)->addr_format = row->format;
	return 0;
}

static fi_addr_t shift(void)
{
	return row->av == FI_AV_MAP ? SHIFT : 0;
}

/* A copy of an object's table, in which functions are replaced: all objects of a kind have the same. */
#define REPLACE(object, table, copy) (copy = *(object)->table, (object)->table = &copy)

static int (*av_insert_of)(struct fid_av *, const void *, size_t, fi_addr_t *, uint64_t, void *);
static int (*av_remove_of)(struct fid_av *, fi_addr_t *, size_t, uint64_t);

static int av_insert(struct fid_av *av, const void *name, size_t count, fi_addr_t *addresses, uint64_t flags, void *context)
{
	int result = av_insert_of(av, name, count, addresses, flags, context);
	if (result == 1)
		*addresses += shift();
	return result;
}

static int av_remove(struct fid_av *av, fi_addr_t *addresses, size_t count, uint64_t flags)
{
	*addresses -= shift();
	return av_remove_of(av, addresses, count, flags);
}

static int (*av_open_of)(struct fid_domain *, struct fi_av_attr *, struct fid_av **, void *);

static int av_open(struct fid_domain *domain, struct fi_av_attr *attr, struct fid_av **av, void *context)
{
	static struct fi_ops_av ops;
	struct fi_av_attr plain = *attr;
	int result;
	if (attr->type != row->av)
		return -FI_EINVAL;
	plain.type = FI_AV_TABLE;
	result = av_open_of(domain, &plain, av, context);
	if (!result) {
		av_insert_of = (*av)->ops->insert;
		av_remove_of = (*av)->ops->remove;
		REPLACE(*av, ops, ops);
		ops.insert = av_insert;
		ops.remove = av_remove;
	}
	return result;
}

static int (*cq_open_of)(struct fid_domain *, struct fi_cq_attr *, struct fid_cq **, void *);

static int cq_open(struct fid_domain *domain, struct fi_cq_attr *attr, struct fid_cq **cq, void *context)
{
	if (!row->waits && attr->wait_obj != FI_WAIT_NONE)
		return -FI_ENOSYS;
	return cq_open_of(domain, attr, cq, context);
}

/* What an operation over so many bytes has to bring along. */
static int lacks(void **desc, void *context, size_t len, uint64_t flags)
{
	if (flags & FI_INJECT)
		return len > row->inject;
	if ((row->mr_mode & FI_MR_LOCAL) && !(desc && *desc))
		return 1;
	if (row->mode && context)
		memset(context, 0xee, sizeof(struct fi_context) * (row->mode == FI_CONTEXT2 ? 2 : 1));
	return row->mode && !context;
}

static struct fi_ops_msg msg_of;
static struct fi_ops_rma rma_of;

static ssize_t sendmsg_to(struct fid_ep *ep, const struct fi_msg *msg, uint64_t flags)
{
	struct fi_msg plain = *msg;
	if (lacks(msg->desc, msg->context, msg->msg_iov->iov_len, flags))
		return -FI_EINVAL;
	plain.addr -= shift();
	return msg_of.sendmsg(ep, &plain, flags);
}

static ssize_t recv_one(struct fid_ep *ep, void *buffer, size_t len, void *desc, fi_addr_t from, void *context)
{
	if (lacks(&desc, context, len, 0))
		return -FI_EINVAL;
	return msg_of.recv(ep, buffer, len, desc, from, context);
}

static ssize_t readmsg(struct fid_ep *ep, const struct fi_msg_rma *msg, uint64_t flags)
{
	struct fi_msg_rma plain = *msg;
	if (lacks(msg->desc, msg->context, msg->msg_iov->iov_len, flags))
		return -FI_EINVAL;
	plain.addr -= shift();
	return rma_of.readmsg(ep, &plain, flags);
}

static ssize_t writemsg(struct fid_ep *ep, const struct fi_msg_rma *msg, uint64_t flags)
{
	struct fi_msg_rma plain = *msg;
	if (lacks(msg->desc, msg->context, msg->msg_iov->iov_len, flags))
		return -FI_EINVAL;
	plain.addr -= shift();
	return rma_of.writemsg(ep, &plain, flags);
}

static int (*endpoint_of)(struct fid_domain *, struct fi_info *, struct fid_ep **, void *);

static int endpoint(struct fid_domain *domain, struct fi_info *info, struct fid_ep **ep, void *context)
{
	static struct fi_ops_msg msg;
	static struct fi_ops_rma rma;
	int result = strcmp(info->fabric_attr->prov_name, row->name) ? -FI_EINVAL : endpoint_of(domain, origin, ep, context);
	if (result)
		return result;
	msg_of = *(*ep)->msg;
	rma_of = *(*ep)->rma;
	REPLACE(*ep, msg, msg);
	REPLACE(*ep, rma, rma);
	msg.sendmsg = sendmsg_to;
	msg.recv = recv_one;
	rma.readmsg = readmsg;
	rma.writemsg = writemsg;
	return 0;
}

/* Of a registration that has to be bound and enabled; its context, which nobody uses, says how far it is. */
static struct fi_ops mr_of;

static int mr_bind(struct fid *mr, struct fid *ep, uint64_t flags)
{
	if (ep->fclass != FI_CLASS_EP || mr->context || flags)
		return -FI_EINVAL;
	mr->context = "bound";
	return 0;
}

static int mr_control(struct fid *mr, int command, void *argument)
{
	if (command != FI_ENABLE || !mr->context || strcmp(mr->context, "bound"))
		return -FI_EINVAL;
	mr->context = "enabled";
	return 0;
}

static int mr_close(struct fid *mr)
{
	if (!mr->context || strcmp(mr->context, "enabled"))
		abort();
	return mr_of.close(mr);
}

static int (*mr_reg_of)(struct fid *, const void *, size_t, uint64_t, uint64_t, uint64_t, uint64_t, struct fid_mr **, void *);

static int mr_reg(struct fid *domain, const void *buffer, size_t len, uint64_t access, uint64_t offset, uint64_t key,
		  uint64_t flags, struct fid_mr **mr, void *context)
{
	static struct fi_ops ops;
	static uint64_t last = 0x10000;
	int result = mr_reg_of(domain, buffer, len, access, offset, row->mr_mode & FI_MR_PROV_KEY ? ++last : key, flags, mr, context);
	if (!result && (row->mr_mode & FI_MR_ENDPOINT)) {
		mr_of = *(*mr)->fid.ops;
		REPLACE(&(*mr)->fid, ops, ops);
		ops.bind = mr_bind;
		ops.control = mr_control;
		ops.close = mr_close;
	}
	return result;
}

static int (*domain_of)(struct fid_fabric *, struct fi_info *, struct fid_domain **, void *);

static int open_domain(struct fid_fabric *fabric, struct fi_info *info, struct fid_domain **domain, void *context)
{
	static struct fi_ops_domain ops;
	static struct fi_ops_mr mr;
	int result = strcmp(info->fabric_attr->prov_name, row->name) ? -FI_EINVAL : domain_of(fabric, origin, domain, context);
	if (result)
		return result;
	av_open_of = (*domain)->ops->av_open;
	cq_open_of = (*domain)->ops->cq_open;
	endpoint_of = (*domain)->ops->endpoint;
	mr_reg_of = (*domain)->mr->reg;
	REPLACE(*domain, ops, ops);
	REPLACE(*domain, mr, mr);
	ops.av_open = av_open;
	ops.cq_open = cq_open;
	ops.endpoint = endpoint;
	mr.reg = mr_reg;
	return 0;
}

int fi_fabric(struct fi_fabric_attr *attr, struct fid_fabric **fabric, void *context)
{
	static struct fi_ops_fabric ops;
	int (*call)(struct fi_fabric_attr *, struct fid_fabric **, void *) = real("fi_fabric");
	int result = strcmp(attr->prov_name, row->name) ? -FI_EINVAL : call(origin->fabric_attr, fabric, context);
	if (result)
		return result;
	domain_of = (*fabric)->ops->domain;
	REPLACE(*fabric, ops, ops);
	ops.domain = open_domain;
	return 0;
}
