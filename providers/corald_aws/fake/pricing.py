"""The Price List API's GetProducts, for EC2 machines on demand."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from corald.model.market import Market
from corald_aws.fake.errors import AwsError
from corald_aws.fake.world import Account, Product

PAGE = 100


def get_products(account: Account, body: Mapping[str, Any]) -> dict[str, Any]:
    """List the products whose attributes match every filter, a page at a time."""
    if body.get("ServiceCode") != "AmazonEC2":
        raise AwsError("InvalidParameterException", "this fake sells AmazonEC2 only")
    found = []
    for product in account.products:
        attributes = _attributes(product)
        if all(_matches(attributes, wanted) for wanted in body.get("Filters", ())):
            found.append(json.dumps(_price_item(account, product, attributes)))
    start = int(body.get("NextToken", "0"))
    answer: dict[str, Any] = {"FormatVersion": "aws_v1", "PriceList": found[start : start + PAGE]}
    if start + PAGE < len(found):
        answer["NextToken"] = str(start + PAGE)
    return answer


def _attributes(product: Product) -> dict[str, str]:
    return {
        "instanceType": product.instance_type,
        "regionCode": product.region,
        "operatingSystem": "Linux",
        "tenancy": "Shared",
        "preInstalledSw": "NA",
        "capacitystatus": "Used",
        "marketoption": "OnDemand",
        "vcpu": str(product.vcpus),
        "servicecode": "AmazonEC2",
    }


def _matches(attributes: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    if wanted["Type"] != "TERM_MATCH":
        raise AwsError("InvalidParameterException", f"filter type {wanted['Type']} is not known")
    return attributes.get(wanted["Field"]) == wanted["Value"]


def _price_item(
    account: Account, product: Product, attributes: Mapping[str, str]
) -> dict[str, Any]:
    sku = f"{product.region}-{product.instance_type}"
    pattern = f"{product.region}/*/{product.instance_type}/{Market.ON_DEMAND}"
    usd_per_hour = account.market.matching(pattern)[0].usd_per_hour
    dimension = {"unit": "Hrs", "pricePerUnit": {"USD": f"{usd_per_hour:.10f}"}}
    term = {"sku": sku, "priceDimensions": {f"{sku}.JRTCKXETXF.6YS6EN2CT7": dimension}}
    return {
        "product": {"productFamily": "Compute Instance", "attributes": attributes, "sku": sku},
        "serviceCode": "AmazonEC2",
        "terms": {"OnDemand": {f"{sku}.JRTCKXETXF": term}},
    }
