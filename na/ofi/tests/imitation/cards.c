/* The machine's libfabric, made to say that it has two cards of one network, whose places on the bus HG_TEST_CARDS names
 * ("1 2": 0000:01:00.0 and 0000:02:00.0). Says on standard error which key and class of traffic it is asked for. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>

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

int fi_fabric(struct fi_fabric_attr *attr, struct fid_fabric **fabric, void *context)
{
	return ((int (*)(struct fi_fabric_attr *, struct fid_fabric **, void *)) real("fi_fabric"))(attr, fabric, context);
}

static int close_nic(struct fid *fid)
{
	struct fid_nic *nic = (struct fid_nic *) fid;
	free(nic->bus_attr);
	free(nic);
	return 0;
}

static int control_nic(struct fid *fid, int command, void *into);

static struct fi_ops nic_ops = { .size = sizeof(struct fi_ops), .close = close_nic, .control = control_nic };

static struct fid_nic *nic_at(int bus)
{
	struct fid_nic *nic = calloc(1, sizeof(*nic));
	nic->fid.ops = &nic_ops;
	nic->bus_attr = calloc(1, sizeof(*nic->bus_attr));
	nic->bus_attr->bus_type = FI_BUS_PCI;
	nic->bus_attr->attr.pci.bus_id = bus;
	return nic;
}

/* fi_dupinfo asks for a copy so. */
static int control_nic(struct fid *fid, int command, void *into)
{
	if (command != FI_DUP)
		return -FI_ENOSYS;
	*(struct fid_nic **) into = nic_at(((struct fid_nic *) fid)->bus_attr->attr.pci.bus_id);
	return 0;
}

static void say(const struct fi_info *hints)
{
	size_t at;
	fprintf(stderr, "asked: key ");
	for (at = 0; at < hints->domain_attr->auth_key_size; at++)
		fprintf(stderr, "%02x", hints->domain_attr->auth_key[at]);
	fprintf(stderr, " %s", hints->ep_attr->auth_key_size == hints->domain_attr->auth_key_size ? "twice" : "once");
	fprintf(stderr, " class %x %x\n", hints->domain_attr->tclass, hints->tx_attr->tclass);
}

int fi_getinfo(uint32_t version, const char *node, const char *service, uint64_t flags,
	       const struct fi_info *hints, struct fi_info **list)
{
	int (*call)(uint32_t, const char *, const char *, uint64_t, const struct fi_info *, struct fi_info **) = real("fi_getinfo");
	struct fi_info *plain = fi_dupinfo(hints), *first;
	int result, one = 1, other = 2;
	say(hints);
	/* No provider of every machine has any. */
	free(plain->domain_attr->auth_key);
	free(plain->ep_attr->auth_key);
	plain->domain_attr->auth_key = plain->ep_attr->auth_key = NULL;
	plain->domain_attr->auth_key_size = plain->ep_attr->auth_key_size = 0;
	plain->domain_attr->tclass = plain->tx_attr->tclass = 0;
	result = call(version, node, service, flags, plain, list);
	fi_freeinfo(plain);
	if (result || !node)
		return result;
	sscanf(getenv("HG_TEST_CARDS"), "%x %x", &one, &other);
	first = *list;
	*list = fi_dupinfo(first);
	(*list)->next = fi_dupinfo(first);
	fi_freeinfo(first);
	(*list)->nic = nic_at(one);
	(*list)->next->nic = nic_at(other);
	free((*list)->domain_attr->name);
	(*list)->domain_attr->name = strdup("card0");
	free((*list)->next->domain_attr->name);
	(*list)->next->domain_attr->name = strdup("card1");
	return 0;
}
